"""Any shape, strides, type and operation, against NumPy."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain import Communicator
from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.allreduce.dtypes import TYPES
from tests.loopback.world import LoopbackWorld

NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


@dataclass(frozen=True)
class Layout:
    """An array that is a view: of ``base`` elements by axis, every ``step``-th of them (backwards where negative),
    axes in another order."""

    base: tuple[int, ...]
    step: tuple[int, ...]
    order: tuple[int, ...]

    def view(self, memory):
        return memory[(*(slice(None, None, step) for step in self.step), ...)].transpose(self.order)


@st.composite
def layouts(draw):
    axes = draw(st.integers(0, 3))
    lengths = st.lists(st.integers(0, 6), min_size=axes, max_size=axes)
    steps = st.lists(st.sampled_from([1, 1, 2, 3, -1, -2]), min_size=axes, max_size=axes)
    return Layout(tuple(draw(lengths)), tuple(draw(steps)), tuple(draw(st.permutations(range(axes)))))


def whole_numbers(layout, dtype, rank):
    """Sums and means of up to 4 of these are exact in each type."""
    count = int(np.prod(layout.base, dtype=int))
    values = ((np.arange(count) * 5 + rank * 3) % 17 - 8) * 4
    return layout.view(values.reshape(layout.base).astype(dtype))


@settings(max_examples=120, deadline=None)
@given(
    size=st.integers(1, 4),
    layout=layouts(),
    result=st.one_of(st.none(), st.just("itself"), layouts()),
    dtype=st.sampled_from([name for name in TYPES if name != "bfloat16"]),
    swapped=st.booleans(),
    op=st.sampled_from(list(NUMPY)),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_as_numpy_does(size, layout, result, dtype, swapped, op, algorithm):
    if op == "mean" and (size == 3 or dtype.startswith("int")):
        op = "sum"
    stored = np.dtype(dtype).newbyteorder(">" if swapped else "=")
    want = NUMPY[op]([whole_numbers(layout, dtype, rank) for rank in range(size)], 0)

    def body(transport):
        communicator = Communicator(transport, algorithm, deadline_s=20.0)
        array = whole_numbers(layout, stored, transport.rank)
        before = array.copy()
        for _ in range(2):  # prepared, and again
            out = array.copy() if result == "itself" else None
            if isinstance(result, Layout):
                out = result.view(np.zeros(result.base, stored))
                if out.shape != array.shape:
                    out = np.zeros(array.shape[::-1], stored).T
            got = communicator.allreduce(out if result == "itself" else array, op, out=out)
            assert out is None or got is out
            assert got.shape == array.shape and got.dtype == (dtype if out is None else stored)
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(array, before)

    LoopbackWorld(size).run(body)
