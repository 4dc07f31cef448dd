"""The parts of a batch, of which a rank has one or more: each has forward and backward passes of its own."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import ConfigError, UsageError
from ringtrain.launch.python_script import PART_PER_RANK


class BatchParts:
    """The parts of each batch of a module, and the one that is under way.

    config: ``shards`` is their number if sums are reproducible; else each rank has one
    size:   number of ranks

    ``count``: of all ranks; ``of_rank``: of each. ``touched``: numbers of the parameters that backward of a part before
    the last has reached, in this iteration. Raises ConfigError.
    """

    def __init__(self, config: ExchangeConfig, size: int, module: torch.nn.Module):
        are_asked = config.reproducible and config.shards != PART_PER_RANK
        self.count, self._size = config.shards if are_asked else size, size
        if self.count % size:
            raise ConfigError(
                f"--shards {self.count} are divided among {size} ranks, as many to each: start a number of ranks that "
                f"divides {self.count}, or give a multiple of {size}, which changes the result"
            )
        self.of_rank = self.count // size
        self.touched: set[int] = set()
        self._statistics = [layer for layer in module.modules() if are_asked and _has_statistics(layer)]
        self._number: int | None = None  # of the rank's parts, within the loop over parts()
        self._is_done = False  # whether its backward has come

    @property
    def is_last(self) -> bool:
        """Whether the next backward is of the rank's last part."""
        return self._number is None or self._number == self.of_rank - 1

    def begin(self, number: int) -> None:
        """Begin a part within the loop over parts(). Raises UsageError."""
        if number != (0 if self._number is None else self._number + 1):
            raise UsageError(
                "the loop over parts() was left before its last part: let it end, and call step() behind it"
            )
        self._check_done()
        self._number, self._is_done = number, False

    def end(self) -> None:
        """End the loop. Raises UsageError."""
        self._check_done()
        self._number = None

    def _check_done(self) -> None:
        if self._number is not None and not self._is_done:
            raise UsageError(
                f"part {self._number + 1} of {self.of_rank} of parts() had no backward pass of its own: call forward "
                "and backward once in the loop, without no_sync(), and step() behind it"
            )

    def passed(self) -> None:
        """Note the end of a backward pass. Raises UsageError."""
        if self._number is None and self.of_rank > 1:
            raise UsageError(
                f"--shards {self.count} at {self._size} ranks gives each rank {self.of_rank} parts of its batch: write "
                "`for part in ringtrain.torch.parts(batch):` around forward and backward, and step() behind it"
            )
        if self._number is not None and self._is_done:
            raise UsageError(
                "a second backward pass came in one part of parts(): add the losses, and call backward() once a part"
            )
        self._is_done = True

    def check_statistics(self) -> None:
        """Raise UsageError for a layer that would keep statistics of parts."""
        for layer in self._statistics:
            if layer.training:
                raise UsageError(
                    f"{type(layer).__name__} keeps statistics over a batch, and those of parts depend on the number of "
                    "ranks: --shards takes networks without such layers, or with them in eval(). Take GroupNorm or "
                    "LayerNorm, or leave --shards out: as many ranks have the same bits then"
                )


def _has_statistics(layer: torch.nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) or bool(getattr(layer, "track_running_stats", False))
