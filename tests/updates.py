"""Numbers of one update, and a whole update by an optimizer."""

import numpy as np

from ringtrain.ops.update import APPLIED, MULTIPLIER, RATE, UPDATE_NUMBERS, UPDATES
from ringtrain.optim.optimizers import make_squares


def update_numbers(ops, lr, step, multiplier=1.0, applied=True):
    """Those of update number ``step``, which has begun."""
    numbers = np.zeros(UPDATE_NUMBERS)
    numbers[[RATE, UPDATES, MULTIPLIER, APPLIED]] = lr, step, multiplier, applied
    return ops.from_host(numbers)


def apply(optimizer, ops, weights, grads, slots, lr, step, start, stop, first=0):
    """Update elements ``start:stop``, of whole parameters where the optimizer needs norms."""
    numbers, squares = update_numbers(ops, lr, step), make_squares(optimizer, ops)
    optimizer.apply(ops, weights, grads, slots, numbers, start, stop, first, squares)
