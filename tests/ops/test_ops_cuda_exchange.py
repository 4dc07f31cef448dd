"""Sums of the memory of several on the device."""

import numpy as np
import pytest

from ringtrain.ops.cuda.exchange import Exchange
from tests.ops.cuda_parts import Part, assert_close, compare, needs_compiler, replayed

pytestmark = needs_compiler


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def test_agrees_with_the_reference():
    part = Part(Exchange)
    assert all(compare(part, {"add_all"}, n) == {"add_all"} for n in (5, 0))


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("start", [0, 1])
def test_sums_are_made_in_the_order_of_the_sources(name, start):
    part, random, dtype = Part(Exchange), np.random.default_rng(9), dtype_of(name)
    wide = np.float64 if name == "float64" else np.float32
    for count in range(1, 9):
        host = [(100 * random.standard_normal(999 + start)).astype(dtype) for _ in range(count)]
        sources = [part.from_host(x)[start:] for x in host]
        fresh = part.runtime.empty((999,), dtype)
        part.add_all(sources, [sources[-1], fresh])
        expected = host[0][start:].astype(wide)
        for x in host[1:]:
            expected += x[start:].astype(wide)
        for target in (sources[-1], fresh):
            assert part.to_host(target).tobytes() == expected.astype(dtype).tobytes()


def test_types_of_16_bits_are_rounded_once():
    part = Part(Exchange)
    sources = [part.from_host(np.array([value], np.float16)) for value in (2048, 1, 1, -2048)]
    part.add_all(sources, sources[:1])
    assert part.to_host(sources[0])[0] == 2


def test_eight_targets():
    part = Part(Exchange)
    x = part.from_host(np.arange(37, dtype=np.float32))
    targets = [part.runtime.empty((37,), "float32") for _ in range(8)]
    part.add_all([x, x], targets)
    for target in targets:
        assert_close(part.to_host(target), 2 * np.arange(37), 0, "")


@pytest.mark.parametrize(("sources", "targets", "message"), [
    (0, 1, "add_all got 0 sources; it takes 1 to 8"), (9, 1, "got 9 sources"), (1, 0, "got 0 targets"),
])  # fmt: skip
def test_too_few_or_too_many(sources, targets, message):
    part = Part(Exchange)
    x = part.from_host(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=message):
        part.add_all([x] * sources, [x] * targets)


def test_it_can_be_recorded():
    part = Part(Exchange)
    x = part.from_host(np.ones(37, np.float32))
    replayed(part, lambda: part.add_all([x, x], [x]))
    assert part.to_host(x).tolist() == [4] * 37
