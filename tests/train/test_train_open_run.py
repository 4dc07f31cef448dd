"""From --device to operations: who gets which device, what is refused, and what is said of too little memory."""

import sys
from types import SimpleNamespace

import pytest
from small_runs import DROPOUT_NET, everywhere, fake_gpu, iterate, losses, run_of

from ringtrain.config.resolve import resolve
from ringtrain.errors import DeviceError, DeviceFullError, ModelError
from ringtrain.nn import spec
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.assembly.device import CudaDevices, cuda_devices, open_device
from ringtrain.train.assembly.memory_check import check_room
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.transport.agree import take_turns
from ringtrain.transport.loopback import Loopback
from tests.fakes.doctor_context import put
from tests.fakes.fake_gpu import FakeGpuOps
from tests.fakes.host_cuda import HostRuntime
from tests.ops.cuda_support import needs_compiler
from tests.runs import start
from tests.says import says

LESS = says("--recompute") + says("--precision")


def config_of(**flags):
    return resolve(("flags", flags))


class FakeCuda:
    """A machine of so many devices, as one process sees them."""

    def __init__(self, visible):
        self.visible, self.asked = visible, []

    def __call__(self):
        return CudaDevices(lambda: self.visible, self.runtime, self.ops, self.wrap)

    def runtime(self, index):
        self.asked.append(index)
        return SimpleNamespace(facts=SimpleNamespace(name="H200", uuid=f"GPU-{index}"))

    def ops(self, runtime, dtype, precision, fixed):
        self.fixed = fixed
        return FakeGpuOps(None, dtype, precision)

    def wrap(self, transport, mpi_cuda, index):
        return (lambda runtime: ("wrapped", runtime.facts.uuid)), (f"messages go {mpi_cuda}",)


def opened(size, visible, **flags):
    def body(t):
        cuda = FakeCuda(visible)
        device = open_device(config_of(device="cuda", **flags), t, cuda)
        return device, cuda.asked

    return everywhere(size, body)


def test_each_rank_opens_its_own_and_the_table_says_so(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ranks = opened(3, 2, mpi_cuda="staged")
    assert [asked for _, asked in ranks] == [[0], [1], [0]]
    device = ranks[1][0]
    assert device.transport == ("wrapped", "GPU-1")
    assert device.notes == (
        "rank 0: node 0, local rank 0, device 0, H200, GPU-0",
        "rank 1: node 0, local rank 1, device 1, H200, GPU-1",
        "rank 2: node 0, local rank 2, device 0, H200, GPU-0",
        says(0, 2, "many", "GPUs"),
        "messages go staged",
    )
    assert device.ops.precision == "float32"


def test_a_process_without_a_device_or_without_cupy_ends_all(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match=says("CUDA_VISIBLE_DEVICES", "''")):
        opened(2, 0)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=says("--device", 13, "pip", "cuda")):
        everywhere(2, lambda t: open_device(config_of(device="cuda"), t))


def test_the_cpu_is_opened_without_a_word(alone):
    device = open_device(config_of(ops="reference"), alone)
    assert (device.ops.name, device.transport is alone, device.notes) == ("reference", True, ())


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def rehearsed(t, capacity, net=DROPOUT_NET, **flags):
    """A run on a device of so many bytes, after its rehearsal."""
    end, ops = fake_gpu(t, total=capacity, others=0)
    run, _ = run_of(end, net, ops, None, **flags)
    with run.batches(t, 0, 1) as batches:
        batch = next(batches)
        take_turns(t, lambda: rehearse(run, ops, batch))
    return run, ops


def test_a_rehearsal_is_of_full_size():
    run, ops = everywhere(1, lambda t: rehearsed(t, 1 << 40, batch=200))[0]
    used = ops.runtime.used
    iterate(run, run.transport, 0, 2)
    ops.synchronize()
    assert used <= ops.runtime.used <= used + (2 << 16)  # no more than the second place of raw batches


def test_what_does_not_fit_is_said_on_every_rank_with_what_takes_less():
    with pytest.raises(DeviceFullError, match=says("--accumulate", "--batch", 700, LESS)):
        everywhere(2, lambda t: rehearsed(t, 2 << 20, batch=1400))
    everywhere(2, lambda t: rehearsed(t, 2 << 20, batch=1400, accumulate=7))


# ── the real way ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("reproducible", [False, True])
def test_reproducible_operations_are_chosen_by_size_alone(reproducible):
    cuda = FakeCuda(1)
    everywhere(1, lambda t: open_device(config_of(device="cuda", reproducible=reproducible), t, cuda))
    assert cuda.fixed == reproducible


@needs_compiler
def test_what_is_opened_trains(monkeypatch):
    """All of it is the real one, but the device, which is the host's."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def body(t):
        real = cuda_devices()
        way = CudaDevices(lambda: 2, lambda index: HostRuntime(), real.ops, real.wrap)
        flags = {"device": "cuda", "mpi_cuda": "staged"}
        device = open_device(config_of(**flags), t, lambda: way)
        device_losses, _, _ = losses(device.transport, DROPOUT_NET, 3, ops=device.ops, **flags)
        return device_losses, device.notes, device.transport.describe()

    host = everywhere(2, lambda t: losses(t, DROPOUT_NET, 3))[0][0]
    device_losses, notes, transport = everywhere(2, body)[0]
    assert device_losses == pytest.approx(host, abs=1e-4)
    assert notes[0].startswith("rank 0: node 0, local rank 0, device 0, host, host-")
    assert notes[1].startswith("rank 1: node 0, local rank 1, device 1, host, host-")
    assert "staged" in notes[2] and "device memory" in transport


# ── networks that no memory holds are refused before any is taken ─────────────────────────────────────────────────────
NET = """
input = { shape = [8, 8, 1] }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "fc1", kind = "Linear", units = WIDE },
  { name = "fc2", kind = "Linear", units = 10 },
]
"""


def table_of(wide):
    return spec.parse_model(NET.replace("WIDE", str(wide)), "wide").graph().parameters()


def checked(root, size, wide, trained=True, ops=None):
    everywhere(size, lambda t: check_room(table_of(wide), ops or ReferenceOps("float32"), t, trained, root))


def test_all_ranks_of_a_host_share_what_it_has(tmp_path):
    checked(tmp_path, 2, 1 << 30)  # where nothing tells of memory all fits
    put(tmp_path, {"proc/meminfo": "MemTotal: 64 kB\n"})
    checked(tmp_path, 1, 96)  # 64 x 96, 96, 96 x 10 and 16 numbers, twice
    with pytest.raises(ModelError, match=says("weights", "gradients", "56.33 KiB", "64 KiB", "2 ranks")):
        checked(tmp_path, 2, 96)
    checked(tmp_path, 2, 96, trained=False)
    put(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\n"})
    with pytest.raises(ModelError, match=says("1 GiB", "1 rank", "fc1.weight", "64x10000000")):
        checked(tmp_path, 1, 10_000_000)


def test_a_device_has_memory_of_its_own(tmp_path):
    put(tmp_path, {"proc/meminfo": "MemTotal: 1 kB\n"})

    class Device(ReferenceOps):
        def memory(self):
            return 0, 1 << 16

    checked(tmp_path, 2, 96, ops=Device("float32"))
    with pytest.raises(ModelError, match=says("64 KiB", "device", "memory", "fc1.weight")):
        checked(tmp_path, 2, 200, ops=Device("float32"))


def test_a_run_is_refused_before_its_folder_is_made(tmp_path):
    first = '{ name = "fc0", kind = "Linear", units = 2147483647 },\n  { name = "fc1"'
    (tmp_path / "wide.toml").write_text(NET.replace('{ name = "fc1"', first).replace("WIDE", "10000"))
    flags = {"model": str(tmp_path / "wide.toml"), "data": "digits", "ops": "reference", "out": str(tmp_path / "run")}
    with pytest.raises(ModelError, match=says("fc1.weight", "2147483647x10000")):
        start(Loopback(), None, flags)
    assert not (tmp_path / "run").exists()
