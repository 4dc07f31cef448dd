"""Images to matrices and back, for convolution as a matrix product.

A row of the matrix is the window of one output pixel: kernel height × kernel width × channels of the group, with
zeros where the window is over the padding. Rows of output pixels are counted through the batch: row ``n·P + p`` has
the Q pixels (n, p, ·).
"""

from ringtrain.ops.cpu.kernels.jit import kernel, u


@kernel
def im2col(x, columns, row0, row1, H, W, C, P, Q, size, stride, pad, c0, count):
    """The windows of output rows row0..row1; channels c0..c0+count."""
    zero = x.dtype.type(0)
    o = 0
    length = size * count
    for row in range(row0, row1):
        n = row // P
        top = (row - n * P) * stride - pad
        for q in range(Q):
            left = q * stride - pad
            first = min(max(0, -left), size)
            last = max(first, min(size, W - left))
            for h in range(top, top + size):
                base = ((n * H + h) * W + left) * C + c0
                if h < 0 or h >= H:
                    for j in range(length):
                        columns[u(o + j)] = zero
                elif count == C:
                    for j in range(first * C):
                        columns[u(o + j)] = zero
                    for j in range(first * C, last * C):
                        columns[u(o + j)] = x[u(base + j)]
                    for j in range(last * C, length):
                        columns[u(o + j)] = zero
                else:
                    for s in range(size):
                        inside = s >= first and s < last
                        for c in range(count):
                            columns[u(o + s * count + c)] = x[u(base + s * C + c)] if inside else zero
                o += length


@kernel
def col2im(columns, x, row0, row1, H, W, C, P, Q, size, stride, pad, c0, count):
    """Adds each element of the windows to the pixel that it was taken from."""
    o = 0
    for row in range(row0, row1):
        n = row // P
        top = (row - n * P) * stride - pad
        for q in range(Q):
            left = q * stride - pad
            first = min(max(0, -left), size)
            last = max(first, min(size, W - left))
            for h in range(top, top + size):
                base = ((n * H + h) * W + left) * C + c0
                if h >= 0 and h < H:
                    if count == C:
                        for j in range(first * C, last * C):
                            x[u(base + j)] += columns[u(o + j)]
                    else:
                        for s in range(first, last):
                            for c in range(count):
                                x[u(base + s * C + c)] += columns[u(o + s * count + c)]
                o += size * count


@kernel
def flip(w, flipped, taps, C, K, groups):
    """Weights [taps, C/groups, K] to [taps reversed, K/groups, C]: those of the gradient's convolution.

    In blocks of 16 × 16, because one of the two sides is read or written across.
    """
    channels, features = C // groups, K // groups
    for t in range(taps):
        for g in range(groups):
            source = t * channels * K + g * features
            target = (taps - 1 - t) * features * C + g * channels
            for c0 in range(0, channels, 16):
                for k0 in range(0, features, 16):
                    for c in range(c0, min(c0 + 16, channels)):
                        for k in range(k0, min(k0 + 16, features)):
                            flipped[u(target + k * C + c)] = w[u(source + c * K + k)]
