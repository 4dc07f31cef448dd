"""Training from files is the same as from memory: the same order, the same bits."""

import numpy as np
import pytest
from small_runs import DROPOUT_NET, iterate, run_of

from ringtrain.data.file.dataset import open_dataset
from ringtrain.transport.world import connect


@pytest.fixture
def files(tmp_path):
    digits = open_dataset("digits").train
    for number, rows in enumerate((slice(0, 150), slice(150, 300))):
        np.savez(tmp_path / f"part-{number}.npz", x=digits.images[rows], y=digits.labels[rows])
    return f"{tmp_path}/part-*.npz"


def weights(transport, data, start=0, **flags):
    """(held, hash of the weights, examples) of the iterations from ``start`` up to 12."""
    run, ops = run_of(transport, DROPOUT_NET, examples=None, data=data, iterations=12, **flags)
    seen = []
    iterate(run, transport, start, 12, lambda batch: seen.append(batch.examples.copy()))
    return run.data.location, run.arena.hash(ops), np.concatenate(seen).tolist()


@pytest.mark.parametrize("shuffle", ["full", "blocks", None])
def test_streamed_and_in_memory_have_the_same_bits(files, shuffle):
    transport = connect()
    streamed, in_memory = (weights(transport, files, stream=how, shuffle=shuffle) for how in ("yes", "no"))
    assert streamed[0] == "streamed" and in_memory[0] == "private" and streamed[1:] == in_memory[1:]
    # The second half needs nothing of the first.
    assert weights(transport, files, 7, stream="yes", shuffle=shuffle)[2] == streamed[2][7 * 30 :]
