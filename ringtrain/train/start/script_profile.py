"""Times the parts of a script's steps, in the form of ``ringtrain time --json``, for ``ringtrain plan --profile``.
Nothing here imports PyTorch.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

PROFILE = "profile.json"
WARM_UP, MOST_STEPS = 10, 200  # steps before those that are looked at, at most half of a short run; and these
PARTS = ("iteration_s", "input_s", "forward_s", "update_s")


class StepTimes:
    """The moments of the steps of a rank, and of so many parameters in them. Of several backward passes before a step
    the last one counts as backward, beside which gradients travel; those before it count as forward."""

    def __init__(self, parameters: int, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._steps, self._waited_s = clock, list[np.ndarray](), 0.0
        self._ready = np.full(parameters, np.nan)
        self._began: float | None = None
        self._begin(None)

    def _begin(self, began: float | None) -> None:
        self._began, self._update_s = began, 0.0
        self._forward_at: float | None = None
        self._backward_at: float | None = None
        self._ready[:] = np.nan

    @property
    def is_full(self) -> bool:
        return len(self._steps) >= WARM_UP + MOST_STEPS

    def forward(self) -> None:
        if self._forward_at is None:
            self._forward_at = self._clock()

    def backward(self) -> None:
        """Note that the gradient of the module's output has come."""
        self._backward_at = self._clock()
        self._ready[:] = np.nan

    def ready(self, index: int) -> None:
        """Note that the gradient of a parameter is final."""
        if self._backward_at is not None:
            self._ready[index] = self._clock() - self._backward_at

    def update(self) -> None:
        self._update_at = self._clock()

    def updated(self) -> None:
        self._update_s += self._clock() - self._update_at

    def step(self, waited_s: float) -> None:
        """End a step. waited_s: for which this rank has waited for exchanges so far"""
        now, waits = self._clock(), waited_s - self._waited_s
        self._waited_s = waited_s
        if self._began is not None and self._forward_at is not None and self._backward_at is not None:
            last = np.nanmax(self._ready, initial=0.0)  # a parameter that backward does not reach is ready at its end
            parts = now - self._began - waits, self._forward_at - self._began, self._backward_at - self._forward_at
            self._steps.append(np.array([*parts, self._update_s, *np.nan_to_num(self._ready, nan=last)]))
        self._begin(now)

    def medians(self) -> dict | None:
        """Return the medians of :data:`PARTS` and ``ready_s`` by parameter, from the begin of backward on; None without
        two steps."""
        if not self._steps:
            return None
        kept = self._steps[min(WARM_UP, len(self._steps) // 2) :]
        middle = np.median(kept, axis=0).tolist()
        return {**dict(zip(PARTS, middle, strict=False)), "ready_s": middle[len(PARTS) :], "steps": len(kept)}


def profile_of(module: dict, of_ranks: Sequence[dict], facts: dict) -> dict:
    """Return the content of the file. module: its ``header``, ``parameters``, ``buckets``; of_ranks: medians, of which
    those of the slowest rank count; facts: more of the header"""
    slowest = max(of_ranks, key=lambda each: each["iteration_s"])
    ready_s = dict(zip(module["parameters"], slowest["ready_s"], strict=True))
    layers: dict[str, float] = {}  # to the moment at which all its gradients are final
    for name, moment in ready_s.items():
        layer = name.rpartition(".")[0]
        layers[layer] = max(moment, layers.get(layer, 0.0))
    rows, before = [], 0.0
    for layer, moment in sorted(layers.items(), key=lambda each: each[1]):
        rows.append({"layer": layer, "kind": "module", "forward_s": None, "backward_s": moment - before})
        before = moment
    rows.append({"layer": "forward", "kind": "forward", "forward_s": slowest["forward_s"], "backward_s": None})
    rest = slowest["iteration_s"] - slowest["input_s"] - slowest["forward_s"] - before - slowest["update_s"]
    apart = {"input": slowest["input_s"], "rest": max(rest, 0.0), "update": slowest["update_s"]}
    rows = [*rows[::-1], *({"layer": n, "kind": "", "forward_s": None, "backward_s": s} for n, s in apart.items())]
    buckets = [each | {"ready_s": max(ready_s[name] for name in each["parameters"])} for each in module["buckets"]]
    header = module["header"] | facts | {"steps": slowest["steps"]}
    return module | {
        "header": header, "totals": {"iteration_s": slowest["iteration_s"]}, "rows": rows, "buckets": buckets,
    }  # fmt: skip
