"""Several launches as one."""

import os
import signal
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from ringtrain.bench.measure.rows import COLUMNS
from ringtrain.bench.sweep import files
from ringtrain.bench.sweep.plots import sweep_figure
from ringtrain.show.figures import write_picture
from tests.bench.sweeps import swept as any_sweep
from tests.conftest import BENCHMARKS

pytestmark = pytest.mark.usefixtures("short_streams")
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    from launches import markdown, merged
KIB = 1 << 10


@pytest.fixture(scope="module")
def swept():
    """A sweep as it is kept, of the MPI's own and a ring at two sizes."""
    whole = any_sweep(sizes=(KIB, 64 * KIB), algorithms=("mpi", "ring"), checked=False)
    return {"header": whole.header | {"load": 0.5, "cpu": "a processor", "hosts": {"here": 2}}, "rows": whole.rows}


def launch(swept, ring_s, mpi_s=2e-6, mpi=None, ring=None, load=0.5):
    """The same sweep with these medians."""
    rows = []
    for row in swept["rows"]:
        of_mpi = row["algorithm"] == "mpi"
        time = mpi_s if of_mpi else ring_s
        figures = {"median_s": time, "samples_s": [time] * 3, "speedup": None if of_mpi else mpi_s / ring_s}
        rows.append({**row, **figures, "cv": 0.0, "unreliable": [], **((mpi if of_mpi else ring) or {})})
    return {"header": swept["header"] | {"load": load}, "rows": rows}


def ring_of(whole, nbytes=KIB):
    return next(row for row in whole["rows"] if row["algorithm"] == "ring" and row["bytes"] == nbytes)


def test_the_least_the_median_and_the_greatest_of_the_launches(swept):
    whole = merged([launch(swept, 1e-6, load=0.1), launch(swept, 4e-6, load=0.7), launch(swept, 2e-6)])
    ring = ring_of(whole)
    assert (ring["speedup_low"], ring["speedup"], ring["speedup_high"]) == (0.5, 1.0, 2.0)
    assert ring["median_s"] == 2e-6 and ring["launches"]["median_s"] == [1e-6, 4e-6, 2e-6]
    assert (ring["repeats"], len(ring["samples_s"]), ring["min_s"]) == (9, 9, 1e-6)
    assert ring["algbw_bytes_per_s"] == ring["busbw_bytes_per_s"] == KIB / 2e-6
    assert tuple(ring) == (*COLUMNS, "launches") and len(whole["rows"]) == 4
    assert [each["load"] for each in whole["header"]["launches"]] == [0.1, 0.7, 0.5]
    assert whole["header"]["finished"] is True


def test_the_table_has_an_algorithm_a_line_and_says_how_it_was_measured(swept):
    memory = [{"memory": "ordinary"}, {"memory": "shared"}, {"memory": "ordinary"}]
    ring = {"unreliable": ["cv 30%"], "cv": 0.3}
    launches = [launch(swept, time, 2e-4, mpi, ring) for time, mpi in zip((1e-4, 4e-4, 2e-4), memory, strict=True)]
    text = markdown(**merged(launches))
    assert "2 ranks on 1 node (here x 2); a processor; " in text and ", load 0.5 to 0.5.\n" in text
    assert "3 launches of 3 iterations; before each, every rank writes its buffer." in text
    assert "|  | 1 KiB | 64 KiB |" in text
    assert "| mpi, µs | 200, **200**, 200 ordinary x 2, shared x 1 | 200, " in text
    assert "| ring | 0.5, **1**, 2† | 0.5, **1**, 2† |" in text
    assert "†: unreliable: cv above 10% in 3 of 3 launches." in text


def test_what_differs_between_launches(swept):
    noisy = launch(swept, 1e-6, ring={"cv": 0.3, "unreliable": ["cv 30%"]})
    assert ring_of(merged([noisy, *2 * [launch(swept, 1e-6)]]))["unreliable"] == []
    crowded = launch(swept, 1e-6, ring={"unreliable": ["4 ranks on 2 cores"]})
    assert ring_of(merged([crowded, launch(swept, 1e-6)]))["unreliable"] == ["4 ranks on 2 cores"]
    wrong = {"status": "wrong", "wrong": 3}
    whole = merged([launch(swept, 1e-6), launch(swept, 1e-6, ring=wrong)])
    assert (ring_of(whole)["status"], ring_of(whole)["wrong"]) == ("wrong", 3) and "| wrong |" in markdown(**whole)
    refused = {"status": "refused", "median_s": None, "unreliable": None, "speedup": None}
    whole = merged([launch(swept, 1e-6, ring=refused)] * 2)
    assert ring_of(whole)["status"] == "refused" and "| refused |" in markdown(**whole)
    assert ring_of(merged([launch(swept, 1e-6, ring=refused), launch(swept, 1e-6)]))["status"] == "ok"
    first = launch(swept, 1e-6, ring={"algorithm": "auto:ring"})
    other = launch(swept, 1e-6, ring={"algorithm": "auto:mapped"})
    assert {row["algorithm"] for row in merged([first, other])["rows"]} == {"mpi", "auto"}
    assert {row["algorithm"] for row in merged([first, first])["rows"]} == {"mpi", "auto:ring"}


def test_files_and_pictures_of_launches(swept, tmp_path):
    whole = merged([launch(swept, 1e-6), launch(swept, 4e-6, ring={"unreliable": ["4 ranks on 2 cores"]})])
    files.write_json(tmp_path / "a.json", whole["header"], whole["rows"])
    assert files.read_json(tmp_path / "a.json")["rows"] == whole["rows"]
    pytest.importorskip("matplotlib")
    write_picture(partial(sweep_figure, **whole), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "least to greatest of 2 launches" in drawn and "hollow: unreliable, by" in drawn
    place = f"here, a processor, {whole['header']['at'][:10]}, before each call every rank writes its buffer"
    assert place in drawn
    quiet = launch(swept, 1e-6)
    write_picture(partial(sweep_figure, **quiet), tmp_path / "b.svg")
    drawn = (tmp_path / "b.svg").read_text()
    assert "hollow" not in drawn and "95 % interval" in drawn


@pytest.fixture
def program(benchmarks):
    """`scripts/bench allreduce`, as a module."""
    return benchmarks("allreduce")


def test_a_launch_that_fails_is_the_last_and_those_before_it_are_written(program, swept, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    whole = iter([launch(swept, 1e-6), launch(swept, 1e-6), launch(swept, 4e-6), None])
    monkeypatch.setattr(program, "launch", lambda words, confine: next(whole))
    out = tmp_path / "out"
    asked = ["--launches", "3", "--ranks", "2,3", "-n", "3", "--launch", "sh {ranks}"]
    monkeypatch.setattr(sys, "argv", ["allreduce", f"--out={out}", *asked])
    with pytest.raises(SystemExit) as ended:
        program.allreduce()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "allreduce: launch 2 of 3, 3 ranks, failed: no more are started\n"
    launches = {n: files.read_json(out / f"allreduce-{n}-ranks.json")["header"]["launches"] for n in (2, 3)}
    assert {ranks: len(each) for ranks, each in launches.items()} == {2: 2, 3: 1}
    text = (out / "allreduce-2-ranks.md").read_text()
    command = "scripts/bench allreduce --launches 3 --ranks 2,3 -n 3 --launch 'sh {ranks}'"
    assert text.startswith(f"`{command}`, commit ") and str(tmp_path) not in text
    assert {path.name for path in out.glob("*.png")} == {"allreduce-2-ranks.png", "allreduce-3-ranks.png"}


@pytest.mark.parametrize(
    ("controllers", "name", "value"),
    [(["cpu"], "cpu/G/cpu.cfs_quota_us", "150000"), ([], "G/cpu.max", "150000 100000")],
)
def test_a_launch_gets_the_time_of_so_many_cores(program, tmp_path, monkeypatch, controllers, name, value):
    """By files of either version of control groups; a folder of files is removed by the kernel alone."""
    control_groups = sys.modules["control_groups"]
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups.CpuGroup, "remove", lambda group: None)
    for controller in controllers:
        (tmp_path / controller).mkdir()
    with program.confinement(1.5, None) as confine:
        confine()
    file = tmp_path / name.replace("G", f"ringtrain-cpu-{os.getpid()}")
    assert file.read_text() == value and (file.parent / "cgroup.procs").read_text() == str(os.getpid())


def test_a_group_ends_with_the_processes_that_are_left_in_it(program, tmp_path, monkeypatch):
    """As ranks whose launcher was interrupted. A folder of files becomes empty by hand, while it waits."""
    control_groups = sys.modules["control_groups"]
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    group = control_groups.CpuGroup(1.5)
    (folder,) = tmp_path.iterdir()
    clear = SimpleNamespace(sleep=lambda seconds: [file.unlink() for file in folder.iterdir()])
    monkeypatch.setattr(control_groups, "time", clear)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as left:
        (folder / "cgroup.procs").write_text(str(left.pid))
        group.remove()
        assert left.wait() == -signal.SIGKILL and not folder.exists()


def test_a_launch_gets_the_first_cores(program):
    with program.confinement(None, 1) as confine:
        print_cores = "import os; print(*os.sched_getaffinity(0))"
        cores = subprocess.run([sys.executable, "-c", print_cores], preexec_fn=confine, capture_output=True, text=True)
    assert cores.stdout.split() == [str(min(os.sched_getaffinity(0)))]
