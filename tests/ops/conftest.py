"""What a device must be for some tests."""

import pytest

from ringtrain.ops.cuda.wgmma import CAPABILITY
from tests.ops.cuda_support import REAL, device_runtime


@pytest.fixture
def hopper():
    """Skip the test on a device that is not a Hopper; the host's is one."""
    if REAL and device_runtime().facts.capability != CAPABILITY:
        pytest.skip("these kernels are for Hopper alone")
