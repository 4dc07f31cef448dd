"""The changes of weights that averaging sends in place of weights, fragment by fragment, and the sums under way.

What a compression, or a wire of 16 bits, rounds or leaves for later is small beside weights, and error feedback adds
the rest to the rank's next change. With a delay changes have memory of their own: the gradients' is in use meanwhile.

Source: Basu et al., Qsparse-local-SGD, NeurIPS 2019 (compressed changes with error feedback); Sarfi et al.,
Communication efficient LLM pre-training with SparseLoCo, 2025 (with an outer step); Donchev et al., Streaming DiLoCo
with overlapping communication, 2025 (fragments, delay).
"""

import numpy as np

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.arrays import Array
from ringtrain.config.presets import setter
from ringtrain.exchange.base import RankState
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.compression.error_feedback import make_gradient_reduction
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.outer_step import Fragment, OuterOptimizer
from ringtrain.exchange.strategies.periods import divide, unit_bytes
from ringtrain.memory.arena import Arena

PENDING, PENDING_SHARES = "pending", "pending_shares"
NOTHING = -1.0  # in place of a share: no sum is pending
WHOLE = {"compress": NONE, "wire": NONE}  # as weights and gradients travel


class TravellingChanges(RankState):
    """Sums the ranks' changes of each fragment, and steps along their sum.

    A checkpoint has the sums that are pending for as many ranks. Others begin without them, and send these changes
    again, with those that follow.
    """

    def __init__(self, settings: ExchangeSettings, arena: Arena, outer: OuterOptimizer):
        config, nbytes = settings.config, arena.count * arena.grads.dtype.itemsize
        self._ops, self._outer, self._delayed = settings.ops, outer, config.average_delay > 0
        self._change = settings.transport.allocate(arena.count, arena.grads.dtype) if self._delayed else arena.grads
        self.nbytes = nbytes if self._delayed else 0
        self.reduction = make_gradient_reduction(settings.with_options(bucket_bytes=unit_bytes(nbytes, config)))
        sums = self.reduction.bind(arena.spans, self._change)
        parts = divide(sums.buckets, config.fragments, setter(config.sync, "fragments", config.fragments))
        self._sums = [sums.part(part) for part in parts] if len(parts) > 1 else [sums]
        self._fragments = [Fragment([s for b in each.buckets for s in b.spans]) for each in self._sums]
        self._shares = np.full(len(parts), NOTHING)  # of this rank in the pending sums
        self._in_flight: set[int] = set()  # fragments whose pending sum may still be under way

    @property
    def reducers(self) -> dict[str, Reducer]:
        """The reducer of each fragment, by its name in reports."""
        names = [f"changes {number}" for number in range(1, len(self._sums) + 1)]
        return dict(zip(names if len(names) > 1 else ["changes"], self._sums, strict=True))

    def start(self, number: int, share: float) -> None:
        """Send a fragment's changes, of which this rank's count by its share: a period ends."""
        self._outer.put_change(self._fragments[number], self._change)
        for start, stop in self._fragments[number].pieces:
            self._ops.scale(self._change[start:stop], share)
        self._sums[number].start()
        self._in_flight.add(number)
        self._shares[number] = share

    def test(self) -> None:
        """Make progress, without waiting."""
        for number in self._in_flight:
            self._sums[number].test()

    def wait(self, number: int) -> None:
        """Wait for a fragment's sum."""
        if number in self._in_flight:
            self._sums[number].wait_all()
            self._in_flight.remove(number)

    def wait_all(self) -> None:
        """Wait for all sums. They stay pending: results do not depend on the moments of evaluations."""
        for number in sorted(self._in_flight):
            self.wait(number)

    def take_step(self, number: int) -> float | None:
        """Step along a fragment's pending sum. Returns this rank's share in it; None if none is pending."""
        share = float(self._shares[number])
        if share == NOTHING:
            return None
        self.wait(number)
        self._outer.step_along(self._fragments[number], self._change)
        self._shares[number] = NOTHING
        return share

    # ── state: the pending sums ───────────────────────────────────────────────────────────────────────────────
    @property
    def differs(self) -> bool:  # type: ignore[override]
        return bool((self._shares != NOTHING).any())

    def arrays(self) -> dict[str, Array]:
        return {PENDING: self._change, PENDING_SHARES: self._shares} if self._delayed else {}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        if self._delayed:
            self._ops.upload(arrays[PENDING], self._change)
            self._shares[:] = arrays[PENDING_SHARES]
