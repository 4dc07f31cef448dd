import numpy as np
import pytest

from ringtrain.transport.buffers import ALIGNMENT, MESSAGE_BYTES, Raw, aligned_zeros, as_bytes, message_bounds
from ringtrain.transport.native_call import starts


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_memory_is_zero_and_on_a_cache_line(count, dtype):
    for _ in range(5):
        memory = aligned_zeros(count, dtype)
        assert memory.shape == (count,) and memory.dtype == dtype and not memory.any()
        assert memory.ctypes.data % ALIGNMENT == 0 or count == 0
        memory[...] = 1


def test_bytes_are_the_same_memory_and_those_that_are_known_by_their_address_are_cut_like_others():
    span = np.zeros((2, 3), "f4")
    as_bytes(span)[:4] = np.frombuffer(np.float32(1.5).tobytes(), "u1")
    assert span[0, 0] == 1.5 and as_bytes(span).size == 24
    owner = object()
    raw = Raw(1000, 50, owner)
    assert as_bytes(raw) is raw and raw.owner is owner
    cuts = [raw[a:b] for a, b in message_bounds(raw.size, 20)]
    assert cuts == [Raw(1000, 20, owner), Raw(1020, 20, owner), Raw(1040, 10, owner)]
    assert raw[10:999] == Raw(1010, 40, owner) and raw[5:5].size == 0


@pytest.mark.parametrize("nbytes", [0, 1, 9, 10, 11, 30, 31])
def test_messages_are_cut_at_the_limit(nbytes):
    parts = list(message_bounds(nbytes, limit=10))
    assert [a for a, _ in parts] == [10 * i for i in range(len(parts))]
    assert sum(b - a for a, b in parts) == nbytes
    assert all(0 < b - a <= 10 for a, b in parts)
    assert starts([3, 0, nbytes]) == [0, 3, 3, 3 + nbytes] and starts([]) == [0]  # parts of a call, by rank


def test_counts_beyond_32_bits_are_cut_at_1_gib():
    nbytes = 4 * (2**31 + 10)
    parts = list(message_bounds(nbytes))
    assert len(parts) == 9 and parts[-1] == (8 * MESSAGE_BYTES, nbytes)
    assert max(b - a for a, b in parts) == 2**30
