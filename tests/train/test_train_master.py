"""What is a master's own: rank 0 alone reads, has the loss and updates."""

from dataclasses import replace

import numpy as np
from small_runs import DROPOUT_NET, everywhere, iterate, run_of, trained


def test_rank_0_alone_reads_and_keeps_a_state():
    """What the others would read is another data set; their batches are empty."""

    def body(t):
        run, _ = run_of(t, DROPOUT_NET, sync="master", iterations=2)
        if t.rank:
            train = replace(run.data.train, images=np.zeros_like(run.data.train.images))
            run = replace(run, data=replace(run.data, train=train))
        with run.batches(t, 0, 2) as batches:
            counts, outcomes = zip(*((len(b.labels), run.worker.iterate(b)) for b in batches), strict=True)
        return counts, [o.loss_sum for o in outcomes], sorted(run.exchange.owned_state.state())

    want = everywhere(1, lambda t: trained(t, DROPOUT_NET, 2, dtype="float64"))[0][0]
    ranks = everywhere(3, body)
    assert [counts for counts, *_ in ranks] == [(30, 30), (0, 0), (0, 0)]
    assert [names for *_, names in ranks] == [["momentum", "step"], ["step"], ["step"]]
    np.testing.assert_allclose(np.array(ranks[2][1]) / 30, want, rtol=1e-4)


def test_bytes_by_rank_are_those_of_the_formula():
    """Two iterations of 30 images of 8 by 8, with 10 outputs each, and n bytes of gradients."""
    size, iterations, batch = 3, 2, 30

    def body(t):
        run, _ = run_of(t, DROPOUT_NET, sync="master", iterations=iterations, dtype="float64")
        iterate(run, t, 0, iterations)
        traffic = run.exchange.reducers.traffic()
        return traffic.bytes_sent, traffic.bytes_received, traffic.exposed_s, 8 * run.arena.count

    ranks = everywhere(size, body)
    n, heads = ranks[0][3], batch // size * 10 * 8
    images = batch // size * (64 + 8 + 3 * 4 + 1)  # with label, crop and the number of the example
    assert ranks[0][:2] == (2 * iterations * (n + images + heads), 2 * iterations * (n + heads))
    assert {rank[:2] for rank in ranks[1:]} == {(iterations * (n + heads), iterations * (n + images + heads))}
    assert all(exposed > 0 for _, _, exposed, _ in ranks)
