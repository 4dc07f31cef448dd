"""ringtrain bench-allreduce, as a user types it, in one process; tests/mpi has several."""

import json
import re

import pytest

from ringtrain.allreduce import texts as allreduce_texts
from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.bench import texts as bench_texts
from ringtrain.bench.sweep.files import write_json
from ringtrain.cli import texts as cli_texts
from ringtrain.cli.devices import BenchDevices
from ringtrain.cli.main import run
from ringtrain.cli.progress import PROGRESS_EVERY_S, ProgressLine
from ringtrain.collectives import texts as collectives_texts
from ringtrain.collectives.stream import STREAMS
from ringtrain.errors import NEAREST, RingtrainError
from ringtrain.transport import texts as transport_texts
from ringtrain.transport.cuda_aware.decision import CudaDecision
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime

TINY = ("-b", "1K", "-e", "4K", "-f", "4", "-n", "3", "-w", "1")


def ringtrain(capfd, *arguments):
    """(exit code, standard output, standard error)"""
    code = run(["bench-allreduce", *map(str, arguments)])
    return code, *capfd.readouterr()


def test_help_is_found_by_the_name_with_a_hyphen(capfd):
    code, out, _ = ringtrain(capfd, "--help")
    assert code == 0 and "Usage: ringtrain bench-allreduce [OPTIONS]" in out


def test_a_sweep_with_all_its_files(capfd, tmp_path):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv")}
    code, out, err = ringtrain(capfd, *TINY, "--json", paths["json"], "--csv", paths["csv"], "-d", "all", "-o", "all")
    assert code == 0, err
    assert out.count(f"refused: {bench_texts.MEAN_OF_INTEGERS}") == 2 * len(ALGORITHMS) * 2
    assert re.search(bench_texts.CHECKED.pattern(wrong=0), out)
    rows = json.loads(paths["json"].read_text())["rows"]
    assert len(rows) == len(ALGORITHMS) * 2 * 6 * 4 == len(paths["csv"].read_text().splitlines()) - 1


def test_buffers_of_a_device(capfd, tmp_path, monkeypatch):
    """Which is not there."""

    def no_nccl():
        raise ImportError("there is no device")

    choice = CudaDecision("staged", "one rank sends nothing", ())
    made = BenchDevices(
        lambda: 0, lambda index: HostRuntime(), lambda runtime, dtype: FakeGpuOps(runtime, dtype), lambda t, i: choice
    )
    monkeypatch.setattr("ringtrain.cli.devices.real_cuda", lambda transport: made)
    monkeypatch.setattr("ringtrain.bench.measure.nccl.load_from_cupy", no_nccl)
    monkeypatch.setattr("ringtrain.bench.model.copies.COPY_BYTES", 1 << 16)
    path = tmp_path / "out.json"
    code, out, err = ringtrain(capfd, *TINY, "--device", "cuda", "--json", path)
    assert code == 0, err
    assert out.startswith(f"# {transport_texts.STAGED_IN_USE(why=choice.why)}\n")
    assert "# buffers on 1 device, host; messages staged\n" in out
    found = json.loads(path.read_text())
    assert found["header"]["device"]["name"] == "host" and found["header"]["finished"]
    assert len(found["rows"]) == 2 * (len(ALGORITHMS) + 1) and {row["device"] for row in found["rows"]} == {"cuda"}
    refused = {row["algorithm"]: row["reason"] for row in found["rows"] if row["status"] != "ok"}
    why = collectives_texts.STREAM_ON_HOST()
    on_host = {name: collectives_texts.CANNOT_RUN(algorithm=name, why=why) for name in STREAMS}
    assert refused == {"nccl": bench_texts.NO_NCCL(error="there is no device"), **on_host}


def test_sizes_of_a_model(capfd, tmp_path):
    path = tmp_path / "a.json"
    code, _, err = ringtrain(capfd, "--sizes-of", "lenet", "-n", "1", "-w", "0", "--json", path)
    assert code == 0, err
    assert {row["bytes"] for row in json.loads(path.read_text())["rows"]} == {1724608}


def test_limits_decide_the_exit_status(capfd, tmp_path):
    path = tmp_path / "a.json"
    assert ringtrain(capfd, *TINY, "--json", path)[0] == 0
    assert ringtrain(capfd, *TINY, "--compare", path, "--max-regress", "100000%")[0] == 0
    kept = json.loads(path.read_text())
    for row in kept["rows"]:
        row["samples_s"] = [s / 1e6 for s in row["samples_s"]]
    path.write_text(json.dumps(kept))
    code, _, err = ringtrain(capfd, *TINY, "--compare", path, "--max-regress", "0.05")
    assert code == 1 and re.search(bench_texts.SLOWER.pattern(), err)
    code, _, err = ringtrain(capfd, *TINY, "--min-busbw", "1")
    assert code == 1 and bench_texts.TOO_SLOW(busbw=0.0, algorithm="ring", wanted=1.0) in err
    code, _, err = ringtrain(capfd, *TINY, "-d", "float64", "--compare", path)
    assert code == 2 and re.search(bench_texts.NOTHING_TO_COMPARE.pattern(), err)
    code, _, err = ringtrain(capfd, *TINY, "--warm", "--compare", path)
    rule = bench_texts.OTHER_RULE.pattern(path=path, then=bench_texts.WRITES_BUFFER, now=bench_texts.KEEPS_BUFFER)
    assert code == 2 and re.search(rule, err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--algorithm", "rign"),
            re.escape(allreduce_texts.UNKNOWN_ALGORITHM(name="rign", hint="did you mean 'ring'?")),
        ),
        (("--algorithm", "nccl"), cli_texts.NCCL_ON_HOST.pattern(nccl="nccl")),
        (("--device", "cuda", "--check-collectives"), cli_texts.GUARD_ON_DEVICE.pattern()),
        (("-d", "float31"), bench_texts.UNKNOWN_NAME.pattern(what="type", name="float31")),
        (
            ("-o", "summ"),
            bench_texts.UNKNOWN_NAME.pattern(
                what="operation", name="summ", hint="did you mean 'sum'? known: max, mean, min, sum"
            ),
        ),
        (("-b", "lots"), bench_texts.NO_SIZE.pattern(size="lots")),
        (("-e", "99999G"), bench_texts.TOO_LARGE.pattern()),
        (("-b", "2M", "-e", "1M"), bench_texts.BEGINS_AFTER_END.pattern()),
        (("-f", "1"), bench_texts.FACTOR_TOO_SMALL.pattern(factor=1.0)),
        (("--skew", "1"), cli_texts.NO_RANK_VALUE.pattern(value="1", what="delay in seconds")),
        (("--skew", "0:0"), cli_texts.NO_RANK_VALUE.pattern(value="0:0", above=0)),
        (("--skew", "3:0.1"), cli_texts.NO_SUCH_RANK.pattern(rank=3, last=0)),
        (
            ("--skew", "0:1e400"),
            cli_texts.NO_RANK_VALUE.pattern(value="0:1e400", what="delay in seconds", above=0, most=60),
        ),
        (
            ("--algorithm", "hierarchical:rign:ring"),
            re.escape(
                collectives_texts.UNKNOWN_PART(
                    part="rign", place=collectives_texts.WITHIN_NODES, name="hierarchical:rign:ring", hint=""
                )
            ),
        ),
        (("-b", "1000G", "-e", "1000G"), bench_texts.HOST_FULL.pattern()),
        (("-e", "100E"), bench_texts.NO_SIZE.pattern(size="100E")),
        (("-f", "nan"), bench_texts.FACTOR_TOO_SMALL.pattern(factor=float("nan"))),
        (("-f", "1.000001"), bench_texts.TOO_MANY_SIZES.pattern(most=1000)),
        (("--min-busbw", "nan"), cli_texts.NO_NUMBER.pattern(flag="--min-busbw", value=float("nan"))),
        (("--budget-s", "inf"), cli_texts.NO_NUMBER.pattern(flag="--budget-s", value=float("inf"))),
        (("--max-regress", "much"), cli_texts.NO_SHARE.pattern(value="much")),
        (("--sizes-of", "lenet", "-e", "1M"), cli_texts.SIZES_OF.pattern()),
        (("--sizes-of", "lenett"), NEAREST.pattern(name="lenet")),
        (
            ("--compare", "none.json"),
            bench_texts.UNREADABLE.pattern(path="none.json", reason="No such file or directory"),
        ),
        (("--seed", "-1"), "Invalid value for '--seed'"),
        (("--json", "none/a.json"), bench_texts.NO_FOLDER.pattern()),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(capfd, arguments, message):
    code, out, err = ringtrain(capfd, *arguments)
    assert code == 2 and re.search(message, err) and out == ""


def test_files_that_cannot_be_written_now_may_be_later(capfd, tmp_path, monkeypatch):
    def full(path, header, rows):
        if not header["finished"]:
            raise RingtrainError(f"{path} could not be written: No space left on device")
        write_json(path, header, rows)

    monkeypatch.setattr("ringtrain.bench.sweep.files.write_json", full)
    code, _, err = ringtrain(capfd, *TINY, "--json", tmp_path / "a.json")
    assert code == 0 and json.loads((tmp_path / "a.json").read_text())["rows"]
    told = (
        f"ringtrain: the rows so far are not in their files: {tmp_path / 'a.json'} could not be written: No space left"
    )
    assert err.count(told) == 1  # of two sizes: when the second is done, the first's are not there


def test_a_disk_that_is_full_at_the_end_is_a_failure_told_once(capfd):
    code, _, err = ringtrain(capfd, *TINY, "-e", "1K", "--json", "/dev/full")
    assert code == 1 and err.count("ringtrain: ") == 1
    assert "ringtrain: /dev/full: no room for " in err and "(No space left on device)" in err


def test_progress_is_told_now_and_then(capfd):
    now = [0.0]
    progress = ProgressLine(clock=lambda: now[0])
    for now[0] in (1.0, PROGRESS_EVERY_S + 1, PROGRESS_EVERY_S + 2):
        progress("something", 3, 7)
    assert capfd.readouterr().err == "# something: 3 of 7 done\n"
