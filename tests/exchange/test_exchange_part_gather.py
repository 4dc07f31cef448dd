"""Arrays of fully connected layers, cut into ranks' columns and brought together again."""

from itertools import pairwise

import numpy as np
import pytest
from exchange_support import over_arena
from pipeline_support import TEXT, bound

from ringtrain.exchange.model_parallel import part_gather
from ringtrain.exchange.model_parallel.part_gather import own_part
from ringtrain.nn import spec
from ringtrain.nn.arena import lay_out
from ringtrain.nn.base import Fill, Parameter
from ringtrain.nn.initial import initial
from tests.loopback.world import LoopbackWorld


def counted(spans):
    """1, 2, 3, …; zero in the padding."""
    return over_arena(spans, np.ones) * np.arange(1, spans[-1].stop + 1)


# ── a parameter's columns ─────────────────────────────────────────────────────────────────────────────────────
def test_columns_of_a_parameter_are_one_of_its_own():
    whole = Parameter("weight", (3, 5), Fill("constant"))
    part = whole.of_columns(1, 3)
    assert (whole.whole_shape, part.shape, part.whole_shape) == ((3, 5), (3, 2), (3, 5))
    values = np.arange(15).reshape(3, 5)
    assert whole.own(values) is values
    assert part.own(values).tolist() == [[1, 2], [6, 7], [11, 12]]
    assert Parameter("bias", (5,), Fill("constant")).of_columns(4, 5).own(np.arange(5)).tolist() == [4]


@pytest.mark.parametrize("edges", [(0, 6), (0, 2, 6), (0, 1, 2, 5, 6)])
def test_columns_are_drawn_as_those_of_the_whole_parameter(edges):
    whole = Parameter("weight", (4, 6), Fill("gaussian", 0.1))
    drawn = initial(whole, "fc.weight", seed=7)
    parts = [initial(whole.of_columns(a, b), "fc.weight", seed=7) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts, axis=1), drawn) and np.ptp(drawn) > 0


# ── arenas of parts ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize(("size", "fc_ranks"), [(2, 1), (4, 2), (5, 4), (9, 7)])
def test_what_is_cut_into_parts_is_gathered_whole_on_all_ranks_in_front(monkeypatch, size, fc_ranks, block):
    """In blocks of a row, of several, of a whole parameter."""
    monkeypatch.setattr(part_gather, "BLOCK", block)
    spans = lay_out(spec.parse_model(TEXT, "net").graph().parameters())
    values, cut = counted(spans), next(span.start for span in spans if span.name == "fc1.weight")

    def body(t):
        exchange, arena, _ = bound(t, fc_ranks=fc_ranks)
        part, whole = exchange.own_part(values), np.zeros(spans[-1].stop)
        if t.rank < size - fc_ranks:
            exchange._gather.gather(whole)
            return whole
        assert part.size == arena.count and not np.shares_memory(part, values)
        exchange._gather.gather(part)
        return set(part[part > 0])

    ranks = LoopbackWorld(size).run(body)
    front, parts = ranks[: size - fc_ranks], ranks[size - fc_ranks :]
    for whole in front:
        assert np.array_equal(whole[cut:], values[cut:]) and not whole[:cut].any()
    assert set().union(*parts) == set(values[cut:][values[cut:] > 0])
    assert sum(map(len, parts)) == np.count_nonzero(values[cut:])  # no element on two ranks


def test_a_part_has_its_columns_of_each_row_in_its_own_order():
    def body(t):
        _, arena, spans = bound(t, fc_ranks=7)
        values, divided = counted(spans), 0
        part = own_part(arena, spans, values)
        for span in arena.spans if t.rank else ():
            whole = next(each for each in spans if each.name == span.name)
            rows = values[whole.start : whole.start + whole.count].reshape(whole.shape)
            columns, values_of_span = span.parameter.columns, part[span.start : span.start + span.count]
            assert np.array_equal(
                values_of_span.reshape(span.shape), rows if columns is None else rows[..., columns.start : columns.stop]
            )
            divided += columns is not None and columns.start > 0 and len(span.shape) == 2
        return divided

    assert sum(LoopbackWorld(8).run(body)) > 2
