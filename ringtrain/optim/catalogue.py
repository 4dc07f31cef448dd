"""Every optimizer by its name."""

from collections.abc import Sequence

from ringtrain.config.record import OptimizerConfig
from ringtrain.errors import ConfigError, nearest
from ringtrain.memory.spans import Span
from ringtrain.optim.muon import Muon
from ringtrain.optim.optimizers import RULES, Optimizer

OPTIMIZERS: dict[str, type[Optimizer]] = {**{each.kind: each for each in RULES}, "muon": Muon}


def make_optimizer(name: str, spans: Sequence[Span], hyper: OptimizerConfig) -> Optimizer:
    if name not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
    return OPTIMIZERS[name](spans, hyper)
