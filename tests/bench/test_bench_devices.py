"""Buffers in the memory of devices that are not there: every row that there is, and every refusal."""

import ctypes
import json
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.bench.measure import links, rows
from ringtrain.bench.measure.buffers import DeviceBuffers
from ringtrain.bench.measure.nccl import Nccl
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep import files, plots, tables
from ringtrain.bench.sweep.sweep import Sweep, sweep
from ringtrain.errors import UsageError
from ringtrain.show.figures import drawn
from ringtrain.transport.device.cuda_ipc import CudaIpc
from ringtrain.transport.device.wrapper import DIRECT, STAGED, DeviceTransport
from tests.bench.sweeps import QUICK, by
from tests.bench.sweeps import swept as any_sweep
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.loopback.world import LoopbackWorld
from tests.says import says

SIZES = (4, 100, 20_000)


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch):
    small = {"RATE_BYTES": (1 << 12,), "STREAM_BYTES": (1 << 18,), "REPEATS": 2, "ALPHA_ROUNDS": 2}
    for name, value in small.items():
        monkeypatch.setattr(links, name, value)


def buffers_of(inner, ways=(STAGED,), runtime=None, make_ops=FakeGpuOps):
    runtime = runtime or HostRuntime(hasty=inner.rank % 2 == 1)
    ipc = CudaIpc(inner, runtime)
    # Threads hand each other no addresses.
    transports = {way: DeviceTransport(inner, runtime, STAGED, ipc=ipc) for way in ways}
    return DeviceBuffers(runtime, lambda dtype: make_ops(runtime, dtype), transports)


def swept(size=3, **asked):
    """A sweep of devices. Arguments of :func:`buffers_of` go to it."""
    settings = {name: asked.pop(name) for name in ("ways", "runtime", "make_ops") if name in asked}
    return any_sweep(size, buffers=partial(buffers_of, **settings), **{"sizes": SIZES, **asked})


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        short_calibration.__wrapped__(patch)
        return swept(algorithms=("mpi", "mapped", "ring", "sliced", "auto"))


def test_rows_of_devices_in_each_way(result):
    over = {"mpi": "staged", "mapped": "ipc", "ring": "staged", "sliced": "staged"}
    assert len(result.rows) == 5 * len(SIZES)
    for row in result.rows:
        assert (row["status"], row["wrong"], row["device"]) == ("ok", 0, "cuda"), row["reason"]
        name = row["algorithm"].removeprefix("auto:")
        way = STAGED if row["algorithm"] in ("ring", "sliced") else ""
        assert (row["transport"], row["way"]) == (over[name], way)
        assert row["same_on_ranks"] and row["same_over_repeats"] and (row["transport"] == "ipc" or row["bound_s"] > 0)
    assert {rows.label(row) for row in result.rows} >= {"mpi", "mapped", "ring (staged)"}
    assert result.header["fits"] == []
    assert result.header["device"] == {"name": "host", "devices": 3, "ways": [STAGED], "apart": ""}
    measured = swept(2, ways=(DIRECT, STAGED), algorithms=("mpi", "mapped", "ring"), sizes=(2000,)).rows
    outcomes = [(row["algorithm"], row["way"], row["transport"], row["status"]) for row in measured]
    assert outcomes == [
        ("mpi", "", "staged", "ok"),
        ("mapped", "", "ipc", "ok"),
        ("ring", DIRECT, DIRECT, "ok"),
        ("ring", STAGED, STAGED, "ok"),
    ]
    assert len({rows.label(row) for row in measured}) == 4


def test_text_files_and_pictures_say_what_device(result, tmp_path):
    text = "\n".join(tables.header_lines(result.header))
    assert "# buffers on 3 devices, host; messages staged\n" in text
    assert "# staged links inside a node: alpha " in text
    files.write_json(tmp_path / "a.json", result.header, result.rows)
    files.write_csv(tmp_path / "a.csv", result.rows)
    again = files.read_json(tmp_path / "a.json")
    assert list(again["header"]["calibration_by_way"]) == [STAGED]
    assert "device,way" in (tmp_path / "a.csv").read_text().splitlines()[0]
    before = json.loads((tmp_path / "a.json").read_text())
    for row in before["rows"]:
        del row["device"], row["way"]
    (tmp_path / "old.json").write_text(json.dumps(before))
    assert {(row["device"], row["way"]) for row in files.read_json(tmp_path / "old.json")["rows"]} == {("cpu", "")}
    pytest.importorskip("matplotlib")
    picture = drawn(lambda: plots.sweep_figure(result.header, result.rows), "svg")
    assert b"sum, in place, buffers on host, 3 ranks" in picture


def test_ranks_write_memory_of_devices_too_before_every_call():
    def prepare(job):
        host = np.full(job.target.shape, 7, np.float32)

        def run():
            measured[job.transport.rank].append(float(job.buffers.read(job.target).max()))
            job.buffers.load(host, job.target)

        return run

    measured = {rank: [] for rank in range(2)}
    protocol = Protocol(repeats=3, warm_up=0)
    asked = {"baselines": {"fake": prepare}, "algorithms": ("fake",), "checked": False, "protocol": protocol}
    (row,) = swept(2, sizes=(2000,), **asked).rows
    assert measured == {0: [0.0] * 3, 1: [0.0] * 3} and (row["memory"], row["status"]) == ("device", "ok")


def test_what_a_device_cannot_do_is_refused_with_the_reason():
    measured = swept(2, algorithms=("ring",), dtypes=("bfloat16", "float64"), ops=("sum", "max"), sizes=(64,)).rows
    assert all(row["reason"] == says("float32 and float64", "bfloat16") for row in by(measured, dtype="bfloat16"))
    assert by(measured, dtype="float64", op="max")[0]["reason"] == says("max")
    assert by(measured, dtype="float64", op="sum")[0]["status"] == "ok"
    device = HostRuntime()  # all ranks of one process have it: CUDA opens no memory there
    (mapped, ring) = swept(2, runtime=device, algorithms=("mapped", "ring"), sizes=(64,)).rows
    assert mapped["status"] == "refused" and ring["status"] == "ok"
    assert says("memory of rank 1").matches(mapped["reason"])
    with pytest.raises(UsageError, match=says("8 GiB", "1 rank")):
        swept(1, sizes=(1 << 33,))


def test_a_device_that_adds_wrongly_is_seen_and_every_algorithm_has_a_row():
    class Wrong(FakeGpuOps):
        """Forgets the last source."""

        def add_all(self, sources, targets):
            super().add_all(sources[:-1] or sources, targets)

    measured = swept(3, make_ops=Wrong, algorithms=("mapped",), sizes=(2000,)).rows
    assert [row["status"] for row in measured] == ["wrong"]
    measured = swept(2, algorithms=ALGORITHMS, sizes=(64,)).rows
    refused = {row["algorithm"]: row["reason"] for row in by(measured, status="refused")}
    assert len(measured) == len(ALGORITHMS)
    assert refused == {"stream": says("stream", "buffer", "host")}


# ── NCCL ──────────────────────────────────────────────────────────────────────────────────────────────────────
class FakeNccl:
    """Sums memory by its addresses, when all ranks have come."""

    NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = 7, 8, 0
    destroyed = 0

    def __init__(self, size):
        self.barrier, self.parts = threading.Barrier(size), [None] * size

    def get_unique_id(self):
        return bytes(range(128))

    def NcclCommunicator(self, size, name, rank):
        assert name == bytes(range(128)) and size == len(self.parts)
        return SimpleNamespace(allReduce=partial(self.all_reduce, rank), destroy=self.destroy)

    def all_reduce(self, rank, source, target, count, kind, op, stream):
        assert (op, stream) == (self.NCCL_SUM, STREAM.ptr)
        dtype = np.dtype({self.NCCL_FLOAT32: "f4", self.NCCL_FLOAT64: "f8"}[kind])
        memory = ctypes.c_char * (count * dtype.itemsize)
        contribution, into = (np.frombuffer(memory.from_address(address), dtype) for address in (source, target))
        self.parts[rank] = contribution.copy()
        self.barrier.wait(20)
        into[:] = sum(self.parts)
        self.barrier.wait(20)

    def destroy(self):
        FakeNccl.destroyed += 1


STREAM = SimpleNamespace(ptr=99, synchronize=lambda: None)


def with_nccl(size, load, runtime=None, **asked):
    asked = Sweep(**{"sizes": (64,), "protocol": QUICK, "algorithms": ("nccl", "mpi"), **asked})

    def body(inner):
        buffers = buffers_of(inner, runtime=runtime)
        nccl = Nccl(buffers, load)
        measured = sweep(buffers.transport, replace(asked, baselines={"nccl": nccl}), buffers=buffers)
        nccl.close()
        inner.close()
        return measured.rows

    return LoopbackWorld(size).run(body)[0]


def test_nccl_takes_part_and_is_refused_where_it_cannot_run():
    library = FakeNccl(2)
    FakeNccl.destroyed = 0
    measured = with_nccl(2, lambda: (library, STREAM), dtypes=("float32", "float64"))
    for row in by(measured, algorithm="nccl"):
        assert (row["status"], row["wrong"], row["transport"], row["way"]) == ("ok", 0, "nccl", ""), row["reason"]
    assert FakeNccl.destroyed == 2 and len(by(measured, algorithm="nccl")) == 2

    def absent():
        raise ImportError(says("find", "libnccl"))

    (row,) = by(with_nccl(2, absent), algorithm="nccl")
    assert row["status"] == "refused" and row["reason"] == says("find", "libnccl")
    shared = with_nccl(2, lambda: (FakeNccl(2), STREAM), HostRuntime())
    assert by(shared, algorithm="nccl")[0]["reason"] == says("ranks 0, 1")
