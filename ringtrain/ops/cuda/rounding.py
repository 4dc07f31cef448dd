"""Weights rounded for products."""

from ringtrain.arrays import Array
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.precision import RoundedWeights

PER_THREAD = 4


def rounded(device: Device, w: Array | RoundedWeights) -> Array:
    """Return ``w`` in the type of activations, kept until the next call; ``w`` itself if it has that type."""
    if isinstance(w, RoundedWeights):
        return w.rounded
    if device.real == device.active:
        return w
    result = device.scratch("rounded weights", w.size, device.active)
    kernel = device.kernels("matrix", "round_weights")
    device.each(kernel, w.size, w, result, w.size, per_thread=PER_THREAD)
    return result
