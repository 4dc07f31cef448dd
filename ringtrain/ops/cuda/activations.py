"""Activations: ``sources/activations.cu``, compiled for each kind."""

from ringtrain.ops.cuda.device import Device


def activation(device: Device, kind, x_N, y_N):
    _each(device, "activation", kind, x_N, y_N)


def activation_back(device: Device, kind, x_N, y_N, dy_N, dx_N):
    _each(device, "activation_back", kind, x_N, y_N, dy_N, dx_N)


def _each(device: Device, function, kind, x, *others):
    kernel = device.kernels.of(x.dtype)("activations", function, KIND=kind)
    device.each(kernel, x.size, x, *others, x.size, per_thread=16 // x.dtype.itemsize)
