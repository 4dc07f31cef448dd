"""Keyed hashes: values that must never change, and that the vectorised form is the plain one."""

import numpy as np
import pytest

from ringtrain.data.batches import keys


def test_splitmix_gives_the_published_first_outputs_of_seed_1234567_and_can_be_undone():
    outputs = [keys.splitmix((1234567 + step * keys.GOLDEN) & keys.MASK) for step in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    key, examples = keys.make_key(7, 8), np.array([0, 1, 5, 2**40, 2**62], np.int64)
    assert keys.hashes(key, examples).tolist() == [keys.splitmix(key ^ e) for e in examples.tolist()]
    values = np.concatenate([np.arange(1000, dtype=np.uint64), np.uint64(keys.MASK) - np.arange(9, dtype=np.uint64)])
    x, scratch = values.copy(), np.empty_like(values)
    keys.splitmix_into(x, scratch)
    assert len(np.unique(x)) == len(values)
    keys.unsplitmix_into(x, scratch)
    assert (x == values).all()


def test_keys_never_change_and_the_order_of_their_integers_matters():
    assert keys.make_key() == 0
    assert keys.make_key(0) == 0xE220A8397B1DCDAF
    assert keys.make_key(1, 2, 3) == 0xD0734750FDE362B3
    assert keys.make_key(-1) == keys.make_key(keys.MASK)
    assert len({keys.make_key(*each) for each in ((1, 2), (2, 1), (1,), (0, 1, 2), (1, 2, 0))}) == 5


@pytest.mark.parametrize("count", [1, 2, 5, 1000, keys.BLOCK, keys.BLOCK + 1, 3 * keys.BLOCK - 1])
def test_a_permutation_is_the_numbers_sorted_by_hash(count):
    key = keys.make_key(3, count)
    expected = np.argsort(keys.hashes(key, np.arange(count)), kind="stable")
    out, scratch = np.full(count, -7, np.int64), np.empty(keys.BLOCK, np.uint64)
    assert keys.permutation(key, count, out, scratch) is out
    assert (out == expected).all() and (keys.permutation(key, count) == expected).all()
    assert keys.permutation(keys.make_key(1, 0, 0), 10).tolist() == [3, 1, 9, 6, 2, 4, 7, 8, 0, 5]  # it never changes
