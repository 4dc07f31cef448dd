"""Errors of learning rates and optimizers that a user sees."""

from ringtrain.template import Template

# lr
UNKNOWN_POLICY = Template("unknown lr_policy {policy!r}; {hint}")
WARMUP = Template("warmup wants a number of iterations, at least 0, got {warmup}")
FLOOR = Template("min_lr is the least learning rate, at most lr {lr:g}, got {floor:g}")
ONE_STEP = Template("lr_policy 'step' wants one period in lr_steps, at least 1, got {steps}")
RISING_STEPS = Template("lr_policy 'multistep' wants lr_steps, rising iterations, got {steps}{why}")
NOT_RISING_IN_ITERATIONS = Template(": in iterations they fall, or two of them are equal")
TOTAL = Template("lr_policy {policy!r} wants the iterations of the whole run, got {total}")

# optim
UNKNOWN_OPTIMIZER = Template("unknown optimizer {name!r}; {hint}")
