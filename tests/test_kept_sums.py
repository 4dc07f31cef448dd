"""Survivors of a death take the last sums from one another; the group of a rank that has not joined them yet."""

import io
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.errors import UsageError
from tests.loopback.world import LoopbackWorld
from tests.says import says

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")

from ringtrain.torch.apart import ApartCommunicator  # noqa: E402
from ringtrain.torch.kept_sums import KeptSums  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.register_buffer("mean", torch.full((2, 3), fill).t())  # not contiguous
        self.register_buffer("count", torch.tensor(int(fill)))
        self.register_buffer("mask", torch.tensor([fill > 1, False]))
        self.register_buffer("apart", torch.tensor(fill))
        self._ddp_params_and_buffers_to_ignore = ["apart"]


def arenas(fill):
    return [SimpleNamespace(arena=SimpleNamespace(grads=np.full(4, fill, np.float32)), parameters=[None, None])]


def test_a_rank_whose_exchange_was_cut_takes_sums_and_buffers_of_one_that_has_them():
    def body(transport):
        net, parts = Net(1.0 + transport.rank), arenas(1.0 + transport.rank)
        kept = KeptSums(parts, net)
        kept.send_buffers(transport)
        assert net.mean.unique().tolist() == [1.0] and (net.count.item(), net.mask.tolist()) == (1, [False, False])
        assert net.apart.item() == 1.0 + transport.rank
        if transport.rank == 1:  # it alone completes a step, of which another buffer is
            kept._bytes[:] = 0
            kept.keep(parts, np.array([True, False]), stops=True)
        kept.share(transport, 1, 1)
        reached = kept.give(parts)
        assert (kept.count, kept.stops, reached.tolist()) == (1, True, [True, False])
        return parts[0].arena.grads.tolist(), net.mean.unique().tolist()

    # rank 1 has its buffers as they are, which may be those of the next forward pass
    assert LoopbackWorld(2).run(body) == [([2.0] * 4, [0.0]), ([2.0] * 4, [1.0])]


def test_before_it_joins_a_rank_has_its_own_values_alone():
    group = ApartCommunicator(1, 3)
    rows, array = np.zeros((3, 2)), np.arange(2.0)
    group.all_gather(array, out=rows)
    assert rows.tolist() == [[0, 1]] * 3 and group.allreduce(array, "sum", out=array) is array
    assert group.reduce_scatter(np.arange(3), "sum", out=np.zeros(1)) == 1 and group.group([0, 1]).rank == 1
    with pytest.raises(UsageError, match=says("recv", "ringtrain.torch.register")):
        group.recv(array, 0)


@pytest.mark.parametrize(
    ("value", "text"), [(np.float64(1), says("['loss']", "float64")), ([1, {2}], says("['loss'][1]", "set"))]
)
def test_a_state_is_of_plain_values(value, text):
    from ringtrain.torch.survival import _saved

    weights = torch.nn.Linear(2, 1).state_dict()
    saved = torch.load(io.BytesIO(_saved({"script": {"net": weights, "loss": [1, None]}})), weights_only=True)
    assert saved["script"]["loss"] == [1, None] and saved["script"]["net"].keys() == weights.keys()
    with pytest.raises(UsageError, match=text):
        _saved({"script": {"net": weights, "loss": value}})
