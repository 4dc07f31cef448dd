"""The learning rate of an iteration: a pure function of the global iteration i, counted from 0.

    constant   lr
    step       lr · gamma^floor(i / s)                  s = the one entry of steps
    multistep  lr · gamma^(how many of steps are <= i)
    poly       lr · (1 - i/total)^power
    inv        lr · (1 + gamma·i)^-power
    cosine     lr · (1 + cos(pi · i/total)) / 2

``floor`` is the least rate: poly and cosine fall from lr to it, floor + (lr - floor) · factor, as eta_min of PyTorch's
CosineAnnealingLR; of step, multistep and inv the rate is at least the floor.

Warm-up multiplies any of these by (i + 1)/warmup while i < warmup (Goyal et al. 2017, section 2.2). Past
``total``, poly and cosine stay at the floor.

Source: Caffe's learning rate policies; cosine: Loshchilov & Hutter 2017
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from ringtrain import parsing
from ringtrain.errors import ConfigError, nearest
from ringtrain.ops.elementary import half_cosine, power


@dataclass(frozen=True, slots=True)
class LearningRate:
    """A learning rate policy. lr: the base rate. policy: one of POLICIES. floor: the least rate. steps, warmup
    and total are in iterations. typed: steps as the user gave them, in iterations or epochs ("30ep"), for errors.

    Raises: ConfigError for an unknown policy, or numbers that it cannot use
    """

    lr: float
    policy: str = "constant"
    steps: tuple[int, ...] = ()
    gamma: float = 0.1
    power: float = 1.0
    warmup: int = 0
    total: int = 0
    floor: float = 0.0
    typed: tuple[int | str, ...] = field(default=(), compare=False)

    def __post_init__(self):
        if self.policy not in POLICIES:
            raise ConfigError(f"unknown lr_policy {self.policy!r}; {nearest(self.policy, POLICIES)}")
        steps, typed = list(self.steps), list(self.typed or self.steps)
        if self.policy == "step" and (len(steps) != 1 or steps[0] < 1):
            raise ConfigError(f"lr_policy 'step' wants one period in lr_steps, at least 1, got {typed}")
        if self.policy == "multistep" and (not steps or steps != sorted(set(steps)) or steps[0] < 0):
            in_epochs = any(isinstance(step, str) for step in typed)
            why = ": in iterations they fall, or two of them are equal" if in_epochs else ""
            raise ConfigError(f"lr_policy 'multistep' wants lr_steps, rising iterations, got {typed}{why}")
        if self.policy in TO_FLOOR and self.total < 1:
            raise ConfigError(f"lr_policy {self.policy!r} wants the iterations of the whole run, got {self.total}")
        if self.floor > self.lr:
            raise ConfigError(f"min_lr is the least learning rate, at most lr {self.lr:g}, got {self.floor:g}")
        if self.warmup < 0:
            raise ConfigError(f"warmup wants a number of iterations, at least 0, got {self.warmup}")

    def at(self, iteration: int) -> float:
        """Return the learning rate of an iteration."""
        try:
            factor = POLICIES[self.policy](self, iteration)
        except OverflowError:  # Python's powers raise here; training reports the infinity
            factor = math.inf
        to_floor = self.policy in TO_FLOOR
        rate = self.floor + (self.lr - self.floor) * factor if to_floor else max(self.lr * factor, self.floor)
        return rate * (iteration + 1) / self.warmup if iteration < self.warmup else rate


def iterations_in(length: int | str, per_epoch: int) -> int:
    """Convert a number of iterations, or of epochs ("5ep") of ``per_epoch`` iterations, to iterations; rounds up."""
    if isinstance(length, int):
        return length
    epochs = parsing.epochs(length)
    if epochs is None:
        raise ValueError(f"{length!r} is no number of epochs")
    return math.ceil(epochs * per_epoch)


# The factor of each policy after ``i`` iterations.
POLICIES: dict[str, Callable[[LearningRate, int], float]] = {
    "constant": lambda s, i: 1.0,
    "step": lambda s, i: power(s.gamma, i // s.steps[0]),
    "multistep": lambda s, i: power(s.gamma, bisect_right(s.steps, i)),
    "poly": lambda s, i: power(1 - min(i / s.total, 1), s.power),
    "inv": lambda s, i: power(1 + s.gamma * i, -s.power),
    "cosine": lambda s, i: half_cosine(min(i / s.total, 1)),
}
TO_FLOOR = ("poly", "cosine")  # policies that end at the floor, with the run
