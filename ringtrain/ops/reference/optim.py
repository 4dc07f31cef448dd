"""The updates of the optimizers, on flat spans, in place."""

import numpy as np


def sgd(w, g, v, lr, momentum, decay, nesterov):
    g = g + decay * w
    v[...] = momentum * v + g
    w -= lr * (g + momentum * v if nesterov else v)


def adamw(w, g, m, v, lr, beta1, beta2, eps, decay, step):
    w -= lr * decay * w
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    w -= lr * (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps)


def adam_direction(w, g, m, v, beta1, beta2, eps, decay, step):
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    g[...] = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * w
