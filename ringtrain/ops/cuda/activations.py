"""Activations: ``sources/activations.cu``, compiled for each kind."""

from ringtrain.ops.cuda.device import Device


class Activations:
    """Activations and their gradients."""

    def __init__(self, device: Device):
        self._device = device

    def activation(self, kind, x_N, y_N):
        self._each("activation", kind, x_N, y_N)

    def activation_back(self, kind, x_N, y_N, dy_N, dx_N):
        self._each("activation_back", kind, x_N, y_N, dy_N, dx_N)

    def _each(self, function, kind, x, *others):
        kernel = self._device.kernels.of(x.dtype)("activations", function, KIND=kind)
        self._device.each(kernel, x.size, x, *others, x.size, per_thread=16 // x.dtype.itemsize)
