"""Sums of the memory of several, on a host and on the device."""

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cuda_support import BACKENDS, cuda_ops, on_device


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("start", [0, 1])
def test_sums_are_made_in_the_order_of_the_sources(make, name, start):
    """Of 16 bits a device adds in float32, and rounds once."""
    ops, random, dtype = make("float32"), np.random.default_rng(9), np.dtype(getattr(ml_dtypes, name, name))
    wide = np.float32 if ops.fused and dtype.itemsize == 2 else dtype
    for count in range(1, 9):
        host = [(100 * random.standard_normal(999 + start)).astype(dtype) for _ in range(count)]
        sources = [ops.from_host(x)[start:] for x in host]
        fresh = ops.empty((999,), dtype)
        ops.add_all(sources, [sources[-1], fresh])
        expected = host[0][start:].astype(wide)
        for x in host[1:]:
            expected += x[start:].astype(wide)
        for target in (sources[-1], fresh):
            assert ops.to_host(target).tobytes() == expected.astype(dtype).tobytes()


@on_device
@pytest.mark.parametrize(("sources", "targets", "message"), [
    (0, 1, "add_all got 0 sources; it takes 1 to 8"), (9, 1, "got 9 sources"), (1, 0, "got 0 targets"),
])  # fmt: skip
def test_too_few_or_too_many(sources, targets, message):
    ops = cuda_ops()
    x = ops.from_host(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=message):
        ops.add_all([x] * sources, [x] * targets)
