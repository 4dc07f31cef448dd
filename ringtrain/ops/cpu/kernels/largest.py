"""The k largest magnitudes of an array, exactly, in two passes over it and some over few elements.

Without its sign, a floating-point number's bits are a whole number that grows with it. The first pass counts how many
elements have which leading bits; from the top, the counts say which leading bits the k-th largest has. The second pass
writes down where elements with those bits or larger ones are: k, and those that share the k-th's leading bits. Among
them the next bits are counted, and so on to the last bit: what is larger than the k-th is taken, and of its equals the
first ones.

A threshold guessed from a sample saves the first pass, but takes more or fewer than k; messages have one size here.
"""

import numpy as np

from ringtrain.ops.cpu.kernels.jit import kernel, u

BITS = 11  # counted at once: the exponent of float64, exponent and 3 bits more of float32
BINS = 1 << BITS
ONE = np.uint64(1)


@kernel
def find(bits, k, indices, places, counts):
    """Indices of the k largest, in order. ``bits``: the elements, as whole numbers; ``places``: room for as many
    indices; ``counts``: for BINS numbers."""
    if k == 0:
        return
    shift = 8 * bits.itemsize - 1 - BITS
    count_all(bits, shift, counts)
    edge, above = bin_of(counts, k)
    found = places[: collect(bits, np.uint64(edge) << u(shift), places)]
    least, equals = kth(bits, found, shift, np.uint64(edge), k - above, counts)
    kept = 0
    for i in found:
        m = magnitude(bits, i)
        if m > least or (m == least and equals > 0):
            equals -= m == least
            indices[u(kept)] = i
            kept += 1


@kernel
def magnitude(bits, i):
    """Of element i, without its sign, as a number that can be shifted."""
    return np.uint64(bits[u(i)]) & ((ONE << u(8 * bits.itemsize - 1)) - ONE)


@kernel
def count_all(bits, shift, counts):
    counts[:] = 0
    for i in range(bits.size):
        counts[u(magnitude(bits, i) >> u(shift))] += 1


@kernel
def bin_of(counts, k):
    """The bin of the k-th largest, and how many are in those above."""
    above = 0
    for edge in range(counts.size - 1, -1, -1):
        if above + counts[u(edge)] >= k:
            return edge, above
        above += counts[u(edge)]
    return 0, above


@kernel
def collect(bits, least, places):
    """Write down, without a branch, where magnitudes of at least ``least`` are; how many."""
    found = 0
    for i in range(bits.size):
        places[u(found)] = i
        found += magnitude(bits, i) >= least
    return found


@kernel
def kth(bits, found, shift, leading, k, counts):
    """Of the elements ``found`` whose bits from ``shift`` on are ``leading`` the k-th largest: its magnitude, and how
    many of its equals are among those k."""
    while shift > 0:
        step = min(shift, BITS)
        counts[:] = 0
        for i in found:
            m = magnitude(bits, i)
            if m >> u(shift) == leading:
                counts[u((m >> u(shift - step)) & ((ONE << u(step)) - ONE))] += 1
        edge, above = bin_of(counts, k)
        k -= above
        shift -= step
        leading = (leading << u(step)) | np.uint64(edge)
    return leading, k


@kernel
def take(x, indices, values):
    zero = x.dtype.type(0)
    for j in range(indices.size):
        i = u(indices[u(j)])
        values[u(j)] = x[i]
        x[i] = zero


@kernel
def add(values, indices, y):
    for j in range(indices.size):
        y[u(indices[u(j)])] += values[u(j)]
