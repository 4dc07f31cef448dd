"""Networks that no memory holds are refused before any is taken."""

import pytest
from small_runs import everywhere

from ringtrain.errors import ModelError
from ringtrain.nn import spec
from ringtrain.ops.reference import ReferenceOps
from ringtrain.train.assembly.memory_check import check_room
from ringtrain.transport.loopback import Loopback
from tests.fakes.doctor_context import put
from tests.runs import start
from tests.says import says

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
