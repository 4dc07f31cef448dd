"""Images to matrices and back, for convolution as a matrix product.

A row of the matrix is the window of one output pixel: kernel height × kernel width × channels of the group,
with zeros where the window is over the padding. Rows of output pixels are counted through the batch: row
``n·P + p`` has the Q pixels (n, p, ·).
"""

from ringtrain.ops.cpu.kernels.jit import inlined, kernel, u

SLACK = 8
LONG = 64


@inlined
def copy(source, i, target, o, count):
    """target[o : o+count] = source[i : i+count], short ones eight at a time: up to seven more elements are copied.

    All eight are read before one is written, which lets the compiler use a vector without asking whether the
    arrays overlap. Asking costs little only where there is much to copy.
    """
    if count >= LONG or i + count + 8 > source.size:
        for j in range(count):
            target[u(o + j)] = source[u(i + j)]
        return
    for j in range(0, count, 8):
        f, t = i + j, o + j
        a, b, c, d = source[u(f)], source[u(f + 1)], source[u(f + 2)], source[u(f + 3)]
        e, g, h, k = source[u(f + 4)], source[u(f + 5)], source[u(f + 6)], source[u(f + 7)]
        target[u(t)], target[u(t + 1)], target[u(t + 2)], target[u(t + 3)] = a, b, c, d
        target[u(t + 4)], target[u(t + 5)], target[u(t + 6)], target[u(t + 7)] = e, g, h, k


@kernel
def pad_lines(x, lines, n, top, count, H, W, C, pad):
    """Lines top..top+count of image n, each between ``pad`` zero pixels; a line outside the image is all zeros."""
    zero = x.dtype.type(0)
    o = 0
    width = W * C
    for h in range(top, top + count):
        for j in range(pad * C):
            lines[u(o + j)] = zero
            lines[u(o + pad * C + width + j)] = zero
        o += pad * C
        if h < 0 or h >= H:
            for j in range(width):
                lines[u(o + j)] = zero
        else:
            i = (n * H + h) * width
            for j in range(width):
                lines[u(o + j)] = x[u(i + j)]
        o += width + pad * C


@kernel
def im2col(x, columns, lines, row0, row1, H, W, C, P, Q, size, stride, pad, c0, count):
    """The windows of output rows row0..row1; channels c0..c0+count. A window is copied a little too long and the
    next one over its end, so ``columns`` has SLACK elements to spare. ``lines`` holds one padded image, or part."""
    o = 0
    length = size * count
    row = row0
    while row < row1:
        n = row // P
        p0 = row - n * P
        p1 = min(P, p0 + row1 - row)
        row += p1 - p0
        source, start, width = x, (n * H + p0 * stride) * W * C, W * C
        if pad > 0:
            pad_lines(x, lines, n, p0 * stride - pad, (p1 - p0 - 1) * stride + size, H, W, C, pad)
            source, start, width = lines, 0, (W + 2 * pad) * C
        for p in range(p1 - p0):
            for q in range(Q):
                i = start + p * stride * width + q * stride * C + c0
                for _ in range(size):
                    if count == C:
                        copy(source, i, columns, o, length)
                    else:
                        for s in range(size):
                            copy(source, i + s * C, columns, o + s * count, count)
                    i += width
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
