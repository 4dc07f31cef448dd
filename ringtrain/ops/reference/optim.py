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


def adam(w, g, m, v, lr, beta1, beta2, eps, decay, step):
    adamw(w, g + decay * w, m, v, lr, beta1, beta2, eps, 0.0, step)


def rmsprop(w, g, s, v, lr, momentum, alpha, eps, decay):
    g = g + decay * w
    s[...] = alpha * s + (1 - alpha) * g * g
    v[...] = momentum * v + g / (np.sqrt(s) + eps)
    w -= lr * v


def approach(w, g, rate):
    w += rate * (g - w)


def adam_direction(w, g, m, v, beta1, beta2, eps, decay, step):
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    g[...] = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * w
