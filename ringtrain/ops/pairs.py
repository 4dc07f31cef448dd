"""Values with their indices, side by side in bytes, so that both travel in one message: k values, then k indices of
int32, padded to a multiple of 8 bytes."""

import numpy as np

INDEX = np.dtype(np.int32)


def pair_bytes(k: int, itemsize: int) -> int:
    """Return the bytes of k pairs with values of ``itemsize`` bytes."""
    return -(-k * (itemsize + INDEX.itemsize) // 8) * 8


def cut_pairs(pairs: np.ndarray, k: int, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the values and the indices in bytes on the host."""
    middle = k * np.dtype(dtype).itemsize
    return pairs[:middle].view(dtype), pairs[middle : middle + k * INDEX.itemsize].view(INDEX)


def pair_count(count: int, k: int, chunk: int) -> int:
    """Return the number of pairs that k pairs of each ``chunk`` of ``count`` elements are, and as large a share of the
    last chunk, rounded up; of all elements at once with a chunk of 0: k."""
    return count // chunk * k + -(-(count % chunk * k) // chunk) if chunk else k
