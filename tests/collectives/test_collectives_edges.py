"""Chunks of lengths of one's own, and what every rank has for every other."""

from itertools import accumulate

import numpy as np
import pytest

from ringtrain.collectives.algorithms.all_to_all import ALL_TO_ALL, all_to_all
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.execution.execute import Execution
from ringtrain.collectives.schedule import ALL_GATHER, REDUCE_SCATTER
from ringtrain.errors import TransportError
from tests.fakes.transports import delaying
from tests.loopback.world import LoopbackWorld
from tests.says import says

DEADLINE_S = 20.0
LENGTHS = {1: [4], 2: [0, 7], 3: [5, 1, 9], 5: [2, 0, 3, 70, 1]}  # of the chunk that is each rank's


def run(schedule, transport, buffer, edges):
    execution = Execution(schedule, delaying(transport, 3), buffer, np.add, segment_bytes=64, chunk_bounds=edges)
    execution.run(DEADLINE_S)
    return execution.bytes_sent


@pytest.mark.parametrize("size", LENGTHS)
def test_halves_cut_where_they_are_told(size):
    edges = [0, *accumulate(LENGTHS[size])]
    everyone = [np.arange(edges[-1], dtype="f8") * 3 + rank * 100 for rank in range(size)]

    def body(transport):
        part = slice(edges[transport.rank], edges[transport.rank + 1])
        buffer = everyone[transport.rank].copy()
        scattered = run(make_schedule("sliced", size, REDUCE_SCATTER), transport, buffer, edges)
        np.testing.assert_array_equal(buffer[part], sum(everyone)[part])
        gathered = run(make_schedule("sliced", size, ALL_GATHER), transport, buffer, edges)
        np.testing.assert_array_equal(buffer, sum(everyone))
        length = part.stop - part.start
        assert (scattered, gathered) == (8 * (edges[-1] - length), 8 * (size - 1) * length)

    LoopbackWorld(size).run(body)


@pytest.mark.parametrize("size", LENGTHS)
def test_everybody_gets_what_everybody_has_for_it(size):
    """Rank s has LENGTHS[d] · (s + 1) elements for rank d. The next rank comes first."""
    schedule = all_to_all(size)
    assert (schedule.goal, schedule.chunks, schedule.max_chunks_sent(0)) == (ALL_TO_ALL, 2 * size, size - 1)
    order = [move.peer for step in schedule.steps(size - 1) for move in step.sends]
    assert order == [*range(size - 1)]
    lengths = LENGTHS[size]

    def message(source, target):
        return np.arange(lengths[target] * (source + 1)) + 1000 * source + 100_000 * target

    def body(transport):
        rank = transport.rank
        out = [message(rank, peer) for peer in range(size)]
        back = [message(peer, rank) for peer in range(size)]
        edges = [0, *accumulate(part.size for part in [*out, *back])]
        buffer = np.concatenate([*out, *(np.full(part.size, -1) for part in back)])
        sent = run(all_to_all(size), transport, buffer, edges)
        for peer in range(size):
            arrived = buffer[edges[size + peer] : edges[size + peer + 1]]
            np.testing.assert_array_equal(arrived, np.full(arrived.size, -1) if peer == rank else back[peer])
        assert sent == 8 * (sum(part.size for part in out) - out[rank].size)

    LoopbackWorld(size).run(body)


def test_ends_that_do_not_agree_are_told():
    def body(transport):
        edges = [0, 2, 4, 6, 8] if transport.rank else [0, 2, 5, 6, 8]
        run(all_to_all(2), transport, np.zeros(8), edges)

    with pytest.raises(TransportError, match=says(0, 24, 1, 16, "expects", "tag")):
        LoopbackWorld(2).run(body)
