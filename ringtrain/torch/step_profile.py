"""Times the parts of a script's steps by hooks on the gradients of its DDP module."""

from functools import partial
from statistics import median
from timeit import repeat
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

from ringtrain.errors import UsageError
from ringtrain.memory.arena import ALIGNMENT
from ringtrain.torch.strategy_ddp import ENGINES
from ringtrain.train.start.script_profile import StepTimes


class StepProfile:
    """The profile of a script, with one module of DDP's own reducer. ``times``: of its steps; ``ranks``: of all"""

    def __init__(self, ranks: int):
        self.times, self._ranks, self._buckets = StepTimes(0), ranks, list[list[int]]()
        self._named: list[tuple[str, torch.nn.Parameter]] = []

    def watch(self, ddp: DistributedDataParallel) -> None:
        """Time the steps of this module. Raises UsageError for one that is not the only one, or not on the CPU."""
        if ENGINES or self._named:
            what = "another DistributedDataParallel" if self._named else "ringtrain.torch.parallel()"
            raise UsageError(
                f"--profile times one module by DDP's own reducer, and the script calls {what}: leave it out"
            )
        self._named = [(name, each) for name, each in ddp.named_parameters() if each.requires_grad]
        elsewhere = [f"{name} is on {each.device}" for name, each in self._named if each.device.type != "cpu"]
        if elsewhere:
            raise UsageError(f"--profile times modules on the CPU, and {elsewhere[0]}: leave --profile out")
        self.times, self._ddp, self._model = StepTimes(len(self._named)), ref(ddp), type(ddp.module).__name__
        ready = torch._dynamo.disable(lambda index, parameter: self.times.ready(index))
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(ready, index))
            for index, (_, parameter) in enumerate(self._named)
        ]

    def step(self, waited_s: float) -> None:
        """End a step, of those that are timed. waited_s: at the ends of backward so far; one rank alone works there"""
        if self.times.is_full or not self._named:
            return
        self.times.step(waited_s if self._ranks > 1 else 0.0)
        ddp = self._ddp()
        if not self._buckets and ddp is not None:  # DDP makes them anew when it has seen a backward
            text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
            self._buckets = [[int(word) for word in words.split()] for words in text.split(", ") if words]
        while self.times.is_full and self._hooks:
            self._hooks.pop().remove()

    def described(self, state_bytes: int) -> dict:
        """Return the ``header``, ``parameters`` and ``buckets`` of a profile. move_s: half the seconds of a copy"""
        dtype = "float64" if all(each.dtype is torch.float64 for _, each in self._named) else "float32"
        count = sum(-(-each.numel() // ALIGNMENT) * ALIGNMENT for _, each in self._named)
        source, target = torch.ones(2, count, dtype=getattr(torch, dtype))
        facts = {"model": self._model, "dtype": dtype, "held_bytes": 2 * source.nbytes + state_bytes}
        move_s = median(repeat(partial(target.copy_, source), number=1)) / 2
        buckets = [dict(self._named[number] for number in numbers) for numbers in self._buckets]
        sizes = [sum(each.nbytes for each in bucket.values()) for bucket in buckets]
        return {
            "header": facts | {"threads": torch.get_num_threads(), "move_s": move_s},
            "parameters": {name: list(each.shape) for name, each in self._named},
            "buckets": [{"bytes": n, "parameters": list(each)} for n, each in zip(sizes, buckets, strict=True)],
        }
