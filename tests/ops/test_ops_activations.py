"""Kinds of activations: the same on all devices, and one that Python alone knows is refused."""

import re
import signal
from functools import partial

import numpy as np
import pytest

from ringtrain.errors import ConfigError, DeviceError
from ringtrain.ops.base import ACTIVATIONS
from ringtrain.ops.cpu import library
from ringtrain.ops.cpu.compile import file_name
from ringtrain.ops.cuda import kernels as kernels_of
from ringtrain.ops.reference import ReferenceOps, activation
from tests.new_process import in_new_process
from tests.ops.cuda_support import REAL, cuda_ops, on_device
from tests.says import says

MORE = (*ACTIVATIONS, "swish")


@pytest.mark.parametrize("wanted", [MORE, ACTIVATIONS[:-1], ACTIVATIONS[::-1]], ids=["more", "fewer", "another order"])
def test_a_library_with_other_kinds_is_refused_when_it_is_loaded(wanted, monkeypatch):
    _, family = library.open_library()
    path = library.LIBRARIES / file_name(family)
    monkeypatch.setattr(library, "ACTIVATIONS", wanted)
    said = says(path, ", ".join(ACTIVATIONS), ", ".join(wanted))
    with pytest.raises(ConfigError, match=said):
        library.load_library(path)


def test_a_number_beyond_the_kinds_of_the_cpu_ends_the_process():
    program = (
        "import resource, numpy as np\n"
        "from ringtrain.ops.cpu.library import CpuKernels\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "kernels, x = CpuKernels(np.dtype('float32')), np.ones(8, np.float32)\n"
        f"for kind in range({len(MORE)}): kernels.activation(x, x, 8, kind); print(kind, flush=True)\n"
    )
    done = in_new_process(program)
    assert -done.returncode in (signal.SIGILL, signal.SIGTRAP), done.stderr
    assert len(done.stdout.split()) == len(ACTIVATIONS)


def swish(ops):
    x, y = ops.from_host(np.ones(8, np.float32)), ops.empty((8,))
    ops.activation("swish", x, y)
    return ops.to_host(y)


@on_device
def test_a_kind_that_cuda_does_not_list_is_not_compiled():
    with pytest.raises(DeviceError, match=r"swish.*Activation|Activation.*swish"):
        swish(cuda_ops())


@on_device
@pytest.mark.skipif(REAL, reason="a trap ends all work on the device")
def test_a_kind_that_cuda_lists_and_does_not_compute_is_a_trap(monkeypatch):
    right = kernels_of.whole_source
    more = partial(re.sub, r"(enum class Activation {.*?) };", r"\1, swish };")
    monkeypatch.setattr(kernels_of, "whole_source", lambda name: more(right(name)))
    with pytest.raises(DeviceError, match="a trap"):
        swish(cuda_ops())


def test_a_kind_that_the_reference_does_not_compute_is_refused():
    with pytest.raises(KeyError, match="swish"):
        swish(ReferenceOps("float32"))


def test_all_devices_have_the_same_kinds():
    """Those of the CPU are compared when its library is loaded."""
    listed = re.search(r"enum class Activation { (.*) };", kernels_of.whole_source("activations"))
    assert listed and tuple(listed[1].split(", ")) == ACTIVATIONS
    assert tuple(activation.VALUES) == tuple(activation.SLOPES) == ACTIVATIONS
