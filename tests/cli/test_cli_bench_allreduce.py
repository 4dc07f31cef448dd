"""ringtrain bench-allreduce, as a user types it, in one process; tests/mpi has several."""

import json
import re

import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.bench.sweep.files import write_json
from ringtrain.bench.sweep.run import BenchDevices
from ringtrain.errors import RingtrainError
from ringtrain.show.output import PROGRESS_EVERY_S, ProgressLine
from ringtrain.transport.cuda_aware.decision import CudaDecision
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.says import says

COMMAND = "bench-allreduce"

TINY = ("-b", "1K", "-e", "4K", "-f", "4", "-n", "3", "-w", "1")


def test_a_sweep_with_all_its_files(ringtrain, tmp_path):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv")}
    code, out, err = ringtrain(*TINY, "--json", paths["json"], "--csv", paths["csv"], "-d", "all", "-o", "all")
    assert code == 0, err
    assert len(re.findall("refused: integers", out)) == 2 * len(ALGORITHMS) * 2
    assert re.search(says(0, "checked", "element"), out)
    rows = json.loads(paths["json"].read_text())["rows"]
    assert len(rows) == len(ALGORITHMS) * 2 * 6 * 4 == len(paths["csv"].read_text().splitlines()) - 1


def test_buffers_of_a_device(ringtrain, tmp_path, monkeypatch):
    """Which is not there."""

    def no_nccl():
        raise ImportError("there is no device")

    choice = CudaDecision("staged", "one rank sends nothing", ())
    devices = BenchDevices(
        lambda: 0, lambda index: HostRuntime(), lambda runtime, dtype: FakeGpuOps(runtime, dtype), lambda t, i: choice
    )
    monkeypatch.setattr("ringtrain.cli.bench_allreduce.real_cuda", lambda transport: devices)
    monkeypatch.setattr("ringtrain.bench.sweep.run.load_from_cupy", no_nccl)
    path = tmp_path / "out.json"
    code, out, err = ringtrain(*TINY, "--device", "cuda", "--json", path)
    assert code == 0, err
    assert out.splitlines()[0] == says("# ", choice.why)
    assert "# buffers on 1 device, host; messages staged\n" in out
    content = json.loads(path.read_text())
    assert content["header"]["device"]["name"] == "host" and content["header"]["finished"]
    assert len(content["rows"]) == 2 * (len(ALGORITHMS) + 1) and {row["device"] for row in content["rows"]} == {"cuda"}
    refused = {row["algorithm"]: row["reason"] for row in content["rows"] if row["status"] != "ok"}
    on_host = {"stream": says("stream", "buffer", "host")}
    assert refused == {"nccl": says("there is no device"), **on_host}


def test_sizes_of_a_model(ringtrain, tmp_path):
    path = tmp_path / "a.json"
    code, _, err = ringtrain("--sizes-of", "lenet", "-n", "1", "-w", "0", "--json", path)
    assert code == 0, err
    assert {row["bytes"] for row in json.loads(path.read_text())["rows"]} == {1724608}


def test_limits_decide_the_exit_status(ringtrain, tmp_path):
    path = tmp_path / "a.json"
    assert ringtrain(*TINY, "--json", path)[0] == 0
    assert ringtrain(*TINY, "--compare", path, "--max-regress", "100000%")[0] == 0
    kept = json.loads(path.read_text())
    for row in kept["rows"]:
        row["samples_s"] = [s / 1e6 for s in row["samples_s"]]
    path.write_text(json.dumps(kept))
    code, _, err = ringtrain(*TINY, "--compare", path, "--max-regress", "0.05")
    assert code == 1 and re.search(says("earlier", "allowed"), err)
    code, _, err = ringtrain(*TINY, "--min-busbw", "1")
    assert code == 1 and says("ring", "0", "1").matches(err)
    code, _, err = ringtrain(*TINY, "-d", "float64", "--compare", path)
    assert code == 2 and re.search(says("Compare", "placements"), err)
    code, _, err = ringtrain(*TINY, "--cold", "--compare", path)
    rule = says("--cold", path, "writes", "buffer", "emptied")
    assert code == 2 and re.search(rule, err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--algorithm", "rign"), says("--plugin", "'rign'", "did you mean 'ring'?")),
        (("--algorithm", "nccl"), says("--device", "nccl")),
        (("--device", "cuda", "--check-collectives"), says("--check-collectives", "--device")),
        (("-d", "float31"), says("type", "'float31'")),
        (("-o", "summ"), says("operation", "'summ'", "did you mean 'sum'? known: max, mean, min, sum")),
        (("-b", "lots"), says("'lots'", "size")),
        (("-e", "99999G"), says("99999G", "too large")),
        (("-b", "2M", "-e", "1M"), says("begins", "exceed")),
        (("-f", "1"), says("-f 1", "above 1")),
        (("--algorithm", "hierarchical:rign:ring"), says("'rign'", "within", "nodes", "'hierarchical:rign:ring'")),
        (("-b", "1000G", "-e", "1000G"), says("buffers", "need")),
        (("-e", "100E"), says("'100E'", "size")),
        (("-f", "nan"), says("-f nan")),
        (("-f", "1.000001"), says("-f 1.000001", "1,000")),
        (("--min-busbw", "nan"), says("--min-busbw", float("nan"))),
        (("--budget-s", "inf"), says("--budget-s", float("inf"))),
        (("--max-regress", "much"), says("'much'", "share")),
        (("--sizes-of", "lenet", "-e", "1M"), says("--sizes-of", "-b, -e and -f")),
        (("--sizes-of", "lenett"), says("did you mean 'lenet'?")),
        (("--compare", "none.json"), r"none\.json .*No such file or directory"),
        (("--seed", "-1"), "Invalid value for '--seed'"),
        (("--json", "none/a.json"), says("none", "cannot be written")),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(ringtrain, arguments, message):
    code, out, err = ringtrain(*arguments)
    assert code == 2 and re.search(message, err) and out == ""


def test_files_that_cannot_be_written_now_may_be_later_and_a_full_disk_at_the_end_is_a_failure(
    ringtrain, tmp_path, monkeypatch
):
    def full(path, header, rows):
        if not header["finished"]:
            raise RingtrainError(f"{path} could not be written: No space left on device")
        write_json(path, header, rows)

    monkeypatch.setattr("ringtrain.bench.sweep.run.write_json", full)
    code, _, err = ringtrain(*TINY, "--json", tmp_path / "a.json")
    assert code == 0 and json.loads((tmp_path / "a.json").read_text())["rows"]
    output = f"the rows so far are not in their files: {tmp_path / 'a.json'} could not be written: No space left"
    assert err.count(f"ringtrain: {output}") == 1  # of two sizes: when the second is done, the first's are not there
    code, _, err = ringtrain(*TINY, "-e", "1K", "--json", "/dev/full")
    assert code == 1 and err.count("ringtrain: ") == 1
    assert "ringtrain: /dev/full: no room for " in err and "(No space left on device)" in err


def test_progress_is_told_now_and_then(capfd):
    now = [0.0]
    progress = ProgressLine(clock=lambda: now[0])
    for now[0] in (1.0, PROGRESS_EVERY_S + 1, PROGRESS_EVERY_S + 2):
        progress("something", 3, 7)
    assert capfd.readouterr().err == "# something: 3 of 7 done\n"
