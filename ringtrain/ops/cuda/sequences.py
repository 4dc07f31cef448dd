"""Layers of sequences: embedding, what is added to each example, and attention. ``sources/sequences.cu``.

Attention is by plain loops, a block for each row of each head: no tensor cores, and keys are read again for each row.
"""

from ringtrain.ops.cuda.device import Device

THREADS = 128
MOST_PARTS = 64  # of the entries of an embedding: each goes over all rows


def embedding(device: Device, x_NL, w_VD, y_NLD):
    kernel = device.kernels("sequences", "embedding")
    device.each(kernel, y_NLD.size, x_NL, w_VD, y_NLD, x_NL.size, *w_VD.shape)


def embedding_back(device: Device, x_NL, dy_NLD, dw_VD, accumulate=False):
    entries, units = dw_VD.shape
    each = -(-entries // MOST_PARTS)
    blocks = -(-units // THREADS), -(-entries // each)
    arguments = x_NL, dy_NLD, dw_VD, x_NL.size, entries, units, each, accumulate
    device.kernels("sequences", "embedding_back")(blocks, THREADS, device.stream, *arguments)


def add_bias(device: Device, x_ND, b_D, y_ND):
    kernel = device.kernels("sequences", "add_bias")
    device.each(kernel, x_ND.size, x_ND, b_D, y_ND, x_ND.size, b_D.size)


def attention(device: Device, x_NLE, y_NLD, y_NHLL, causal=False):
    same = device.real == device.active
    scores = y_NHLL if same else _scores(device, y_NHLL)
    _rows(device, "attention", y_NHLL, y_NLD, x_NLE, y_NLD, y_NHLL, scores, more=(causal,))


def attention_back(device: Device, x_NLE, y_NHLL, dy_NLD, dx_NLE):
    inputs, scores = (x_NLE, y_NHLL, dy_NLD), _scores(device, y_NHLL)
    _rows(device, "attention_back", y_NHLL, dy_NLD, *inputs, scores, dx_NLE)
    _rows(device, "attention_back_keys", y_NHLL, dy_NLD, *inputs, scores, dx_NLE)


def _scores(device: Device, y_NHLL):
    return device.scratch("attention scores", y_NHLL.size, device.real)


def _rows(device: Device, function, y_NHLL, y_NLD, *arrays, more=()):
    """Launch a block for each row of each head of each example."""
    n, heads, length, _ = y_NHLL.shape
    if n:
        kernel, sizes = device.kernels("sequences", function), (length, y_NLD.shape[2], heads)
        kernel(n * heads * length, THREADS, device.stream, *arrays, *sizes, *more)
