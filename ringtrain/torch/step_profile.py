"""Times the parts of a script's steps by hooks on the gradients of its DDP module."""

from functools import partial
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

from ringtrain.errors import UsageError
from ringtrain.train.start.script_profile import ProfiledModule, StepTimes


class StepProfile:
    """The profile of a module, which DDP has wrapped in ``ddp``, with its own reducer. Raises UsageError for one that
    is not on the CPU."""

    def __init__(self, ddp: DistributedDataParallel):
        self._named = [(name, each) for name, each in ddp.named_parameters() if each.requires_grad]
        elsewhere = [f"{name} on {each.device}" for name, each in self._named if each.device.type != "cpu"]
        if elsewhere:
            raise UsageError(f"--profile times modules on the CPU, and {elsewhere[0]} is not: leave --profile out")
        self.times, self._ddp = StepTimes(len(self._named)), ref(ddp)
        self.module, self._buckets, self._model = ref(ddp.module), list[list[int]](), type(ddp.module).__name__
        ready = torch._dynamo.disable(lambda index, parameter: self.times.ready(index))
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(ready, index))
            for index, (_, parameter) in enumerate(self._named)
        ]

    def step(self, waited_s: float) -> None:
        """End a step, of those that are timed."""
        if self.times.is_full:
            return
        self.times.step(waited_s)
        ddp = self._ddp()
        if not self._buckets and ddp is not None:  # DDP makes them anew when it has seen a backward
            text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
            self._buckets = [[int(word) for word in words.split()] for words in text.split(", ") if words]
        if self.times.is_full:
            while self._hooks:
                self._hooks.pop().remove()

    def described(self, state_bytes: int) -> ProfiledModule:
        parameters = [(name, tuple(each.shape) or (1,), each.element_size()) for name, each in self._named]
        itemsize = 8 if all(size == 8 for *_, size in parameters) else 4
        return ProfiledModule(self._model, parameters, itemsize, self._buckets, torch.get_num_threads(), state_bytes)
