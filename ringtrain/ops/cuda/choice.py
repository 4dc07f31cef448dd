"""The choice among several variants of the same work: the fastest by a timing at the first call, or always the first.

    key unknown ── recording? ──► first, and nothing is kept: other variants allocate when a stream first takes them
         └──────── fixed?     ──► first
         └──────── else       ──► each variant once, compared with the first and timed; the fastest is kept

Timings vary, so results may differ in their last bits from run to run; ``fixed`` prevents this. A variant that fails,
cannot be recorded or gives other numbers is excluded, and :attr:`Choice.notes` reports it. Numbers are compared as they
are at the first call: if all of them are 0 then, as in some gradients, the comparison sees nothing.

``RINGTRAIN_LEAVE_OUT=wgmma,cudnn`` leaves kinds of variants out of every choice in which another variant remains."""

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.trials import distance, sample_of, seconds_of

SETTING = "RINGTRAIN_LEAVE_OUT"
WGMMA, CUDNN, CUBLAS = "wgmma", "cuDNN", "cuBLAS"  # kinds that can be left out; a variant's name holds its kind

# Largest distance of a variant's result from the first one's, relative to its norm: many times the effect of rounding.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "tf32": 1e-2, "float16": 3e-2, "bfloat16": 3e-2}


@dataclass(frozen=True)
class KernelVariant:
    """One implementation of the work. ``run`` does it; its arguments depend on the work."""

    name: str
    run: Callable


@dataclass(frozen=True)
class Chosen:
    """A line of the report. name: of the variant; seconds: of each that was timed."""

    name: str
    seconds: dict[str, float]


def kinds_left_out(value: str) -> dict[str, str]:
    """Return {kind: why} for a value of :data:`SETTING`. Raises: DeviceError for an unknown name."""
    kinds = {kind.lower(): kind for kind in (WGMMA, CUDNN, CUBLAS)}
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name.lower() not in kinds:
            known = ", ".join(kinds)
            raise DeviceError(
                f"{SETTING}={value}: no way is called {name!r}; name some of {known}, with commas between them"
            )
    return {kinds[name.lower()]: f"{SETTING}={value}" for name in names}


class Choice:
    """The choice among variants. ``fixed``: the first, always. ``measure(device, run)`` returns seconds;
    ``look(device, array)`` returns the numbers to compare. Tests have their own.

    Streams of a device share the results; each stream has variants of its own."""

    def __init__(self, fixed=False, measure=seconds_of, look=sample_of):
        self._fixed, self._measure, self._look = fixed, measure, look
        self._kinds_left_out = kinds_left_out(os.environ.get(SETTING, ""))
        self._variants: dict[tuple, KernelVariant] = {}  # by device and work
        self.table: dict[Hashable, Chosen] = {}
        self._left_out: dict[tuple[str, str], int] = {}  # of how much work, by a variant's name and why

    @property
    def notes(self) -> list[str]:
        """Return a line for each kind that is left out, and for each reason why a variant was excluded."""
        kinds = [f"{kind} is left out: {why}" for kind, why in self._kinds_left_out.items()]
        return kinds + [f"{name} is left out {times}×: {why}" for (name, why), times in self._left_out.items()]

    def __call__(
        self,
        device,
        work: Hashable,
        variants: Callable[[], Sequence[KernelVariant]],
        trial: Callable[[KernelVariant], object],
        factors=None,
    ) -> KernelVariant:
        """Do the work by the chosen variant.

        trial(variant): does the work by it, any number of times, losing only its results; returns the result array,
                    the same for all variants
        factors:    type of the factors, which decides the rounding of results; by default the type of activations"""
        return self._variants.get((device, work)) or self._find(device, work, variants(), trial, factors)

    def _find(self, device, work, candidates, trial, factors) -> KernelVariant:
        kept = [each for each in candidates if not any(kind in each.name for kind in self._kinds_left_out)]
        candidates = kept or candidates[:1]
        if device.recording:
            return candidates[0]
        if work not in self.table:
            seconds = {} if self._fixed or len(candidates) == 1 else self._time_all(device, candidates, trial, factors)
            name = min(seconds, key=seconds.__getitem__, default=candidates[0].name)
            self.table[work] = Chosen(name, seconds)
        self._variants[device, work] = next(each for each in candidates if each.name == self.table[work].name)
        return self._variants[device, work]

    def _time_all(self, device, candidates, trial, factors) -> dict[str, float]:
        seconds, first, most = {}, None, TOLERANCE[device.numbers(factors)]
        for variant in candidates:
            try:
                first = self._compared(device, variant, trial, first, most)
                seconds[variant.name] = self._measure(device, lambda variant=variant: trial(variant))
            except (Unable, DeviceFullError) as error:
                key = variant.name, str(error)
                self._left_out[key] = self._left_out.get(key, 0) + 1
        return seconds

    def _compared(self, device, variant, trial, first, most):
        """Return (results, results of the first variant that gave some, its name). Raises: Unable if this one gives
        others."""
        if first is None:
            out = trial(variant)
            return out, self._look(device, out), variant.name
        out, wanted, name = first
        device.runtime.clear(out, device.stream)  # of the variant before
        trial(variant)
        if not distance(self._look(device, out), wanted) <= most and np.isfinite(wanted).all():
            raise Unable(f"its result differs from that of {name} by more than {most:g} of the norm")
        return first
