"""The arena's layout and hash, and weights that depend on seed and name alone."""

import numpy as np
import pytest
from nn_support import reference

from ringtrain.memory.arena import ALIGNMENT, Arena, lay_out
from ringtrain.nn import initial as initial_module
from ringtrain.nn.base import Fill, Parameter
from ringtrain.nn.initial import initial, initialise, normal_blocks, uniforms


def arena_of(table, dtype="float64"):
    ops = reference(dtype)
    return ops, Arena(lambda count, kind: ops.zeros((count,), kind), table, dtype)


TABLE = (
    ("a.weight", Parameter("weight", (3, 5), Fill("he", fan_in=3))),
    ("a.bias", Parameter("bias", (16,), Fill("constant", 2.0), "bias")),
    ("b.weight", Parameter("weight", (17,), Fill("gaussian", 1.0))),
)


def test_spans_follow_in_order_from_aligned_starts():
    spans = lay_out(TABLE)
    assert [(s.start, s.stop, s.count) for s in spans] == [(0, 16, 15), (16, 32, 16), (32, 64, 17)]
    assert all(span.start % ALIGNMENT == 0 for span in spans)
    _, empty = arena_of(())
    assert (empty.count, empty.spans) == (0, ())


def test_views_are_of_the_arena_and_leave_padding_alone():
    ops, arena = arena_of(TABLE)
    for value, span in enumerate(arena.spans, 1):
        ops.fill(arena.weight(span), value)
        ops.fill(arena.grad(span), -value)
    expected = [1] * 15 + [0] + [2] * 16 + [3] * 17 + [0] * 15
    np.testing.assert_array_equal(ops.to_host(arena.weights), expected)
    np.testing.assert_array_equal(ops.to_host(arena.grads), np.negative(expected))
    assert arena.weight(arena.spans[0]).shape == (3, 5)


def test_hash_sees_values_names_shapes_and_types_but_no_padding():
    ops, arena = arena_of(TABLE)
    initialise(arena, ops, 1)
    first = arena.hash(ops)
    ops.fill(arena.weights[15:16], 9)  # padding
    assert arena.hash(ops) == first
    ops.scale(arena.weights[40:41], 1 + 1e-15)
    ops.fill(arena.weights[16:17], 2.0000000000000004)
    assert arena.hash(ops) != first
    for changed in (("z.weight", TABLE[0][1]), ("a.weight", Parameter("weight", (5, 3), TABLE[0][1].fill))):
        _, other = arena_of((changed, *TABLE[1:]))
        ops.copy(arena.weights, other.weights)
        assert other.hash(ops) != arena.hash(ops)
    (one, single), (two, double) = arena_of(TABLE, "float32"), arena_of(TABLE)
    assert single.hash(one) != double.hash(two)


def test_initial_weights_do_not_depend_on_the_order_of_layers_and_all_else_starts_at_zero():
    ops, arena = arena_of(TABLE)
    _, turned = arena_of(TABLE[::-1])
    for each in (arena, turned):
        ops.fill(each.weights, 5), ops.fill(each.grads, 5)
        initialise(each, ops, seed=11)
    assert not ops.to_host(arena.grads).any()
    assert not ops.to_host(arena.weights)[[15, *range(49, 64)]].any()
    weights = {span.name: ops.to_host(turned.weight(span)) for span in turned.spans}
    for span in arena.spans:
        np.testing.assert_array_equal(ops.to_host(arena.weight(span)), weights[span.name])


def test_initial_weights_differ_by_seed_and_name_and_are_these_numbers():
    """A change of generator would silently change every trained network."""
    p = TABLE[2][1]
    assert (initial(p, "a", 1) != initial(p, "a", 2)).all()
    assert (initial(p, "a", 1) != initial(p, "b", 1)).all()
    np.testing.assert_array_equal(initial(p, "a", 1), initial(p, "a", 1))
    expected = [-0.8526695, 0.78813331, -0.52074702]
    np.testing.assert_allclose(initial(p, "b.weight", 0)[:3], expected, rtol=1e-7)


FILLS = [
    (Fill("constant", 3.0), 3.0, 0.0),
    (Fill("gaussian", 0.01), 0.0, 0.01),
    (Fill("uniform", 0.3), 0.0, 0.3 / 3**0.5),
    (Fill("xavier", fan_in=50), 0.0, 50**-0.5),
    (Fill("he", fan_in=50), 0.0, (2 / 50) ** 0.5),
]


@pytest.mark.parametrize(("fill", "mean", "std"), FILLS)
def test_fills_have_their_mean_and_spread(fill, mean, std):
    x = initial(Parameter("weight", (200_000,), fill), "fc.weight", 5)
    assert x.mean() == pytest.approx(mean, abs=4 * std / 200_000**0.5)
    assert x.std() == pytest.approx(std, rel=0.01)


def test_uniforms_and_normals_are_what_they_are_called():
    u, n = uniforms(9, 0, 100_001), np.empty(100_001)
    for start, values in normal_blocks(9, n.size):
        n[start : start + values.size] = values
    assert u.shape == n.shape == (100_001,)
    assert 0 <= u.min() < 1e-3 < 0.999 < u.max() < 1
    assert abs(np.mean(np.abs(n) < 1) - 0.6827) < 0.01
    assert np.isfinite(n).all()


@pytest.mark.parametrize("kind", ["constant", "gaussian", "uniform", "xavier", "he"])
@pytest.mark.parametrize("block", [7, 64])
def test_blocks_and_columns_are_those_of_the_whole_parameter(kind, block, monkeypatch):
    whole = Parameter("weight", (31, 10), Fill(kind, 0.3, fan_in=12))
    expected = initial(whole, "fc.weight", 3)
    monkeypatch.setattr(initial_module, "BLOCK", block)
    np.testing.assert_array_equal(initial(whole, "fc.weight", 3), expected)
    np.testing.assert_array_equal(initial(whole.of_columns(3, 7), "fc.weight", 3), expected[:, 3:7])
