"""Passes cut into pieces: where, and that a device that records them computes what it computed."""

from dataclasses import replace

import numpy as np
import pytest
from nn_support import Net, make_pass
from test_nn_graph import NETS, SHAPE, plain

from ringtrain.nn.base import Pass
from ringtrain.nn.capture_segments import cut
from ringtrain.nn.norm import BatchNorm
from tests.fakes.fake_gpu import FakeGpuOps


def names(segments):
    return [[node.name for node in piece] for piece in segments]


def recorded(ops, **more) -> Pass:
    return Pass(ops, None, recorded=True, **more)


def test_pieces_are_cut_where_weights_are_waited_for_and_where_gradients_set_something_off():
    nodes, ops = plain(), FakeGpuOps()
    assert names(cut(recorded(ops), nodes)) == [[node.name for node in nodes]]
    waits = recorded(ops, waits=frozenset({"fc.weight", "out.bias"}))
    assert [piece[0] for piece in names(cut(waits, nodes, before=waits.waits))] == ["conv", "fc", "out"]
    cuts = recorded(ops, cuts=frozenset({"fc.weight", "out.bias"}))
    segments = names(cut(cuts, nodes[::-1], after=cuts.cuts))
    assert [segment[-1] for segment in segments] == ["out", "fc", "conv"]


def test_a_piece_is_one_layer_where_nothing_is_recorded():
    nodes, ops = plain(), FakeGpuOps()
    for ctx in (Pass(ops, None), recorded(Net(nodes, SHAPE).ops)):
        assert all(len(piece) == 1 for piece in cut(ctx, nodes))


def test_statistics_over_ranks_stand_alone():
    nodes = NETS["residual"]()
    ctx = recorded(FakeGpuOps(), add_over_ranks=lambda numbers: None)
    segments = cut(ctx, nodes)
    apart = [piece[0].name for piece in segments if isinstance(piece[0].layer, BatchNorm)]
    assert apart == ["norm", "norm2"]
    assert all(len(piece) == 1 for piece in segments if isinstance(piece[0].layer, BatchNorm))
    assert len(cut(replace(ctx, training=False), nodes)) == 1


class Trainer:
    """A net on a device, its pass, and its batch at one place."""

    def __init__(self, nodes, recorded=True, **ctx):
        self.net = Net(nodes, SHAPE, ops=FakeGpuOps(dtype="float64"))
        self.ops = self.net.ops
        self.ctx = make_pass(self.ops, self.net.count, recorded=recorded, **ctx)
        self.x, self.examples = self.ops.from_host(self.net.x), self.ctx.examples
        self.labels, self.totals = self.ops.from_host(self.net.labels), self.ops.zeros((3,), "float64")

    def step(self, count, key):
        ctx, graph = self.ctx, self.net.graph
        self.ops.upload(np.array([key], np.uint64), ctx.key)
        ctx.examples = self.examples[:count]
        logits, tapes = graph.forward(ctx, self.x[:count])
        dlogits = self.net.loss.backward(ctx, logits, self.labels[:count], self.totals, 5)
        spans = [span.name for span in graph.backward(ctx, dlogits, tapes)]
        return spans, self.ops.to_host(self.net.arena.grads), graph.first_nonfinite(ctx, tapes)


# (examples, key): a tail now and then, and a first one that is smaller than those that follow, so that arrays grow.
STEPS = [(3, 1), *((5, key) for key in range(2, 7)), (3, 7), (5, 8), (3, 9), (3, 10), (3, 11), (5, 12)]


@pytest.mark.parametrize("cuts", [frozenset(), frozenset({"out.weight", "left.bias", "conv.weight"})])
@pytest.mark.parametrize("name", NETS)
def test_recorded_passes_are_the_passes_bit_by_bit(name, cuts):
    trainer, plainly = Trainer(NETS[name](), cuts=cuts, waits=cuts), Trainer(NETS[name](), recorded=False)
    for step in STEPS:
        expected, got = plainly.step(*step), trainer.step(*step)
        assert got[0] == expected[0], step
        assert got[1].tobytes() == expected[1].tobytes(), step
        assert got[2] is None
    assert trainer.ops.replays >= 8


def test_gradients_are_added_to_in_recordings_of_their_own():
    trainer = Trainer(plain())
    for i in range(8):
        trainer.ctx.accumulate = i % 2 == 1
        trainer.step(5, i)
    assert trainer.ops.replays >= 5


def test_what_statistics_are_averaged_over_has_recordings_of_its_own():
    """A rank may have as many examples of a tail as of a whole batch."""
    trainer, plainly = Trainer(NETS["residual"]()), Trainer(NETS["residual"](), recorded=False)
    for i in range(10):
        trainer.ctx.total = plainly.ctx.total = 5 + i % 2
        assert trainer.step(5, i)[1].tobytes() == plainly.step(5, i)[1].tobytes()
    assert trainer.ops.replays >= 5
