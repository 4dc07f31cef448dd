"""The updates of the optimizers, on flat spans of weights and gradients."""


class Optimizers:
    """The updates of the optimizers."""

    def __init__(self, device):
        self._device = device

    def sgd(self, w, g, v, lr, momentum, decay, nesterov):
        self._update("sgd", w, w, g, v, w.size, lr, momentum, decay, nesterov)

    def adamw(self, w, g, m, v, lr, beta1, beta2, eps, decay, step):
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        self._update("adamw", w, w, g, m, v, w.size, lr, beta1, beta2, eps, decay, *corrections)

    def adam(self, w, g, m, v, lr, beta1, beta2, eps, decay, step):
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        self._update("adam", w, w, g, m, v, w.size, lr, beta1, beta2, eps, decay, *corrections)

    def rmsprop(self, w, g, s, v, lr, momentum, alpha, eps, decay):
        self._update("rmsprop", w, w, g, s, v, w.size, lr, momentum, alpha, eps, decay)

    def adam_direction(self, w, g, m, v, beta1, beta2, eps, decay, step):
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        self._update("adam_direction", w, w, g, m, v, w.size, beta1, beta2, eps, decay, *corrections)

    def approach(self, w, g, rate):
        self._update("approach", w, w, g, w.size, rate)

    def _update(self, name, w, *arguments):
        kernel = self._device.kernels.of(w.dtype)("optim", name)
        self._device.each(kernel, w.size, *arguments, per_thread=16 // w.dtype.itemsize)
