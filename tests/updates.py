"""Numbers of one update, and a whole update by an optimizer."""

from itertools import pairwise

import numpy as np

from ringtrain.ops.update import APPLIED, MULTIPLIER, RATE, UPDATE_NUMBERS, UPDATES
from ringtrain.optim.optimizers import make_squares


def update_numbers(ops, lr, step):
    """The numbers of update ``step``, which has begun."""
    numbers = np.zeros(UPDATE_NUMBERS)
    numbers[[RATE, UPDATES, MULTIPLIER, APPLIED]] = lr, step, 1.0, True
    return ops.from_host(numbers)


def apply(optimizer, ops, weights, grads, slots, lr, step, start, stop, first=0):
    """Update elements ``start:stop``, of whole parameters where the optimizer needs norms."""
    numbers, squares = update_numbers(ops, lr, step), make_squares(optimizer, ops)
    optimizer.apply(ops, weights, grads, slots, numbers, start, stop, first, squares)


def trained(optimizer, ops, gradients, rates, cuts):
    """(weights, slots) after an update at each rate, element ranges between the cuts one after another.
    ``gradients(step)``: over the arena; the weights begin as step 0's."""
    weights = ops.from_host(gradients(0).astype(ops.dtype))
    slots = {slot: ops.zeros(weights.shape) for slot in optimizer.slots}
    for step, lr in enumerate(rates, 1):
        grads = ops.from_host(gradients(step).astype(ops.dtype))
        for start, stop in pairwise(cuts):
            apply(optimizer, ops, weights, grads, slots, lr, step, start, stop)
    return ops.to_host(weights), {slot: ops.to_host(array) for slot, array in slots.items()}
