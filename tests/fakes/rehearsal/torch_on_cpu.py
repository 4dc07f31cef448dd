"""PyTorch's side of the layers in a rehearsal: on the CPU, of arrays that are copied from the host's device."""

import time

import numpy as np
import torch
from layers_torch import TURNS, operands_of, pass_of, results_of


class Torch:
    """What :class:`layers_torch.Torch` does on a GPU; its times are of one run."""

    def __init__(self, runtime):
        self._runtime, self._stream = runtime, runtime.stream()

    def fill(self, plan, arrays) -> None:
        random = np.random.default_rng(0)
        for name in TURNS:
            values = random.standard_normal(arrays[name].shape).astype(arrays["x"].dtype).astype(arrays[name].dtype)
            self._runtime.upload(values, arrays[name], self._stream)
        self._stream.synchronize()

    def results(self, plan, arrays):
        yield from results_of(plan, *self._operands(arrays))

    def apart(self, array, wanted) -> float:
        return float((self._tensor(array) - wanted).norm() / wanted.norm())

    def seconds(self, plan, arrays, what: str) -> float:
        run = pass_of(plan, what, *self._operands(arrays))
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    def _operands(self, arrays):
        return operands_of({name: self._tensor(arrays[name]) for name in TURNS})

    def _tensor(self, array):
        host = np.empty(array.shape, array.dtype)
        self._runtime.download(array, host, self._stream)
        return torch.from_numpy(host.astype(np.float32))
