"""In a rehearsal every Python imports this file: the device is the host's, which the tests have."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
if importlib.util.find_spec("cupy") is None:
    from ringtrain.ops.cuda import cupy_compiler
    from tests.fakes.fake_cupy import FakeCupy

    sys.modules["cupy"] = FakeCupy()
    cupy_compiler._headers = lambda cupy: ((), "")  # its compiler does nothing, and wants no headers

from ringtrain.ops.cuda import cupy_runtime, trials, wgmma
from tests.fakes.host_cuda import HostRuntime

cupy_runtime.make_runtime = cache(lambda index: HostRuntime(quick=True))
cupy_runtime.visible_devices = lambda: 1
trials.REPEATS = trials.MOST_RUNS = 1  # the host's times say nothing
wgmma.TILES = wgmma.TILES[-1:]  # each takes seconds
