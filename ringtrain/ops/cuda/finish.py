"""What surrounds the products of layers: weights in the type of activations."""

from ringtrain.ops.cuda.device import Device


class Finish:
    def __init__(self, device: Device):
        self._device = device

    def rounded(self, w):
        """Weights as products take them: in the type of activations. Kept until the next are asked for."""
        device = self._device
        if device.real == device.active:
            return w
        rounded = device.scratch("rounded weights", w.size, device.active)
        device.each(device.kernels("matrix", "round_weights"), w.size, w, rounded, w.size, per_thread=4)
        return rounded
