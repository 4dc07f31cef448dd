"""Sums of the memory of several on the device."""

import numpy as np
import pytest

from tests.ops.cuda_support import assert_close, cuda_ops, needs_compiler

pytestmark = [needs_compiler, pytest.mark.device]


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("start", [0, 1])
def test_sums_are_made_in_the_order_of_the_sources(name, start):
    ops, random, dtype = cuda_ops(), np.random.default_rng(9), dtype_of(name)
    wide = np.float64 if name == "float64" else np.float32
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


def test_types_of_16_bits_are_rounded_once():
    ops = cuda_ops()
    sources = [ops.from_host(np.array([value], np.float16)) for value in (2048, 1, 1, -2048)]
    ops.add_all(sources, sources[:1])
    assert ops.to_host(sources[0])[0] == 2


def test_eight_targets():
    ops = cuda_ops()
    x = ops.from_host(np.arange(37, dtype=np.float32))
    targets = [ops.empty((37,), "float32") for _ in range(8)]
    ops.add_all([x, x], targets)
    for target in targets:
        assert_close(ops.to_host(target), 2 * np.arange(37), 0, "")


@pytest.mark.parametrize(("sources", "targets", "message"), [
    (0, 1, "add_all got 0 sources; it takes 1 to 8"), (9, 1, "got 9 sources"), (1, 0, "got 0 targets"),
])  # fmt: skip
def test_too_few_or_too_many(sources, targets, message):
    ops = cuda_ops()
    x = ops.from_host(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=message):
        ops.add_all([x] * sources, [x] * targets)
