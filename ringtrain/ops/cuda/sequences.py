"""Layers of sequences: embedding, what is added to each example, and attention. ``sources/sequences.cu``.

Attention is by plain loops, a block for each row of each head: no tensor cores, and keys are read again for each row.
"""

from ringtrain.ops.cuda.device import Device

THREADS = 128
MOST_PARTS = 64  # of the entries of an embedding: each goes over all rows


class Sequences:
    """Embedding, the addition of a bias, and attention."""

    def __init__(self, device: Device):
        self._device = device

    def embedding(self, x_NL, w_VD, y_NLD):
        kernel = self._device.kernels("sequences", "embedding")
        self._device.each(kernel, y_NLD.size, x_NL, w_VD, y_NLD, x_NL.size, *w_VD.shape)

    def embedding_back(self, x_NL, dy_NLD, dw_VD, accumulate=False):
        entries, units = dw_VD.shape
        each = -(-entries // MOST_PARTS)
        blocks = -(-units // THREADS), -(-entries // each)
        given = x_NL, dy_NLD, dw_VD, x_NL.size, entries, units, each, accumulate
        self._device.kernels("sequences", "embedding_back")(blocks, THREADS, self._device.stream, *given)

    def add_bias(self, x_ND, b_D, y_ND):
        kernel = self._device.kernels("sequences", "add_bias")
        self._device.each(kernel, x_ND.size, x_ND, b_D, y_ND, x_ND.size, b_D.size)

    def attention(self, x_NLE, y_NLD, y_NHLL, causal=False):
        same = self._device.real == self._device.active
        scores = y_NHLL if same else self._scores(y_NHLL)
        self._rows("attention", y_NHLL, y_NLD, x_NLE, y_NLD, y_NHLL, scores, more=(causal,))

    def attention_back(self, x_NLE, y_NHLL, dy_NLD, dx_NLE):
        given, scores = (x_NLE, y_NHLL, dy_NLD), self._scores(y_NHLL)
        self._rows("attention_back", y_NHLL, dy_NLD, *given, scores, dx_NLE)
        self._rows("attention_back_keys", y_NHLL, dy_NLD, *given, scores, dx_NLE)

    def _scores(self, y_NHLL):
        return self._device.scratch("attention scores", y_NHLL.size, self._device.real)

    def _rows(self, function, y_NHLL, y_NLD, *arrays, more=()):
        """Launch a block for each row of each head of each example."""
        n, heads, length, _ = y_NHLL.shape
        if n:
            kernel, sizes = self._device.kernels("sequences", function), (length, y_NLD.shape[2], heads)
            kernel(n * heads * length, THREADS, self._device.stream, *arrays, *sizes, *more)
