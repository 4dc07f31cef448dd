"""`ringtrain bench-allreduce` under real mpirun."""

import json
import signal
from importlib.util import find_spec

import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from tests.fakes.clock import until
from tests.mpi.conftest import PATIENCE_S
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi

TINY = ("-b", "1K", "-e", "64K", "-f", "8", "-n", "3", "-w", "1")


def arguments(*more):
    return ["-m", "ringtrain", "bench-allreduce", *TINY, *map(str, more)]


@pytest.fixture
def sweep(mpirun, tmp_path):
    """sweep(ranks, flags) → what it prints, the header of its file, and the rows"""

    def run(ranks, *flags):
        done = mpirun(ranks, arguments(*flags, "--json", tmp_path / "a.json"))
        assert done.returncode == 0, done.stderr
        kept = json.loads((tmp_path / "a.json").read_text())
        return done.stdout, kept["header"], kept["rows"]

    return run


@pytest.mark.parametrize("ranks", [2, *thorough(3)])
def test_a_sweep_beside_the_mpi(sweep, ranks):
    output, header, rows = sweep(ranks, "--pairs")
    assert (header["ranks"], header["transport"]) == (ranks, "messages")
    assert len(header["pairs"]) == ranks * (ranks - 1) // 2
    assert len(rows) == len(ALGORITHMS) * 3 and {row["wrong"] for row in rows} == {0}
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["transport"] for row in rows} == {"mpi", "messages", "mapped", "streamed"}
    assert all(row["same_on_ranks"] and row["same_over_repeats"] for row in rows if row["algorithm"] != "mpi")
    mpi = [row for row in rows if row["algorithm"] == "mpi"]
    other = {"shared": "ordinary", "ordinary": "shared"}
    assert all(row["reason"].endswith(f"as fast as in {other[row['memory']]} memory") for row in mpi)
    for row in rows:
        assert row["algorithm"] == "mpi" or row["memory"] == ("ordinary" if row["algorithm"] == "stream" else "shared")
    assert "before an iteration, every rank writes its buffer\n" in output
    assert output.count("# ringtrain ") == 1


@pytest.mark.parametrize("name", ["all-to-all", "broadcast"])
def test_long_arrays_that_one_process_reads_of_another(sweep, name):
    _, _, rows = sweep(3, "--collective", name, "--algorithm", "auto,mpi", "-b", "6M", "-e", "6M", "-n", "2")
    assert {row["algorithm"] for row in rows} == {"mpi", "auto:stream"}
    assert {(row["status"], row["wrong"]) for row in rows} == {("ok", 0)}


OTHERS = ("reduce", "all-to-all", *thorough("reduce-scatter", "all-gather", "broadcast", "barrier"))


@pytest.mark.parametrize("collective", OTHERS)
def test_collectives_beside_the_mpis_blocking_ones_and_gloo(sweep, collective):
    algorithms = ["auto", "mpi", *(["gloo"] if find_spec("torch") else [])]
    _, _, rows = sweep(3, "--collective", collective, "--algorithm", ",".join(algorithms))
    assert {row["algorithm"] for row in rows} == {"auto:stream", *algorithms[1:]}
    assert {row["status"] for row in rows} == {"ok"} and {row["wrong"] for row in rows} <= {0, None}
    assert len(rows) == len(algorithms) * (1 if collective == "barrier" else 3)


@pytest.mark.thorough
def test_types_and_operations(mpirun):
    done = mpirun(3, arguments("-e", "1K", "-d", "float16,bfloat16,int64", "-o", "all"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused: MPI has no bfloat16") == 4
    assert " 0 wrong, " in done.stdout


@pytest.mark.thorough
def test_a_wire_that_rounds_is_right_and_half_as_long(sweep):
    output, _, rows = sweep(3, "--wire", "all", "--algorithm", "mpi,ring,sliced,hierarchical")
    assert {row["status"] for row in rows if row["algorithm"] != "mpi"} == {"ok"}
    assert output.count("refused: mpi sends a buffer as it is: a wire of") == 2 * 3
    sent = {(r["algorithm"], r["bytes"], r["wire_dtype"]): r["wire_bytes"] for r in rows if r["algorithm"] != "mpi"}
    for (algorithm, nbytes, wire), count in sent.items():
        assert count * (1 if wire == "float32" else 2) == sent[algorithm, nbytes, "float32"]


def test_every_rank_ends_with_the_status_of_the_gate(mpirun):
    done = mpirun(2, arguments("-e", "1K", "--min-busbw", "100000"))
    assert done.returncode == 1
    assert done.stderr.count("star: busbw of at most") == 1


@pytest.mark.parametrize("ending", [signal.SIGTERM, *thorough(signal.SIGINT)])
def test_whoever_ends_a_sweep_early_keeps_what_was_measured(mpirun_process, tmp_path, ending):
    path = tmp_path / "a.json"
    sizes = ("-b", "1K", "-e", "256M", "-f", 1 << 18, "-n", "1000", "-w", "0", "-c", "0")
    process = mpirun_process(2, arguments(*sizes, "--algorithm", "mpi,ring", "--json", path))
    until(lambda: (path.exists() and path.stat().st_size) or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    process.send_signal(ending)
    process.communicate(timeout=PATIENCE_S)
    kept = json.loads(path.read_text())
    assert process.returncode != 0 and kept["header"]["finished"] is False
    assert [(row["algorithm"], row["bytes"]) for row in kept["rows"]] == [("mpi", 1024), ("ring", 1024)]
    assert list(tmp_path.iterdir()) == [path]


def test_buffers_of_devices(mpirun):
    """By both ways of messages, and mapped; on devices that are not there."""
    done = mpirun(2, ["benches_devices.py"])
    assert done.returncode == 0, done.stderr
    note, rows = done.stdout.splitlines()
    assert note == says("#", "directly", "that was tried")
    ways = [["mpi", "", "staged"], ["mapped", "", "ipc"], *(["ring", way, way] for way in ("direct", "staged"))]
    assert json.loads(rows) == 2 * [*([*way, "ok", 0] for way in ways), ["nccl", "", None, "refused", None]]
