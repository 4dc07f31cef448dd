"""A rank of one side of `scripts/bench ddp`: a script of PyTorch, which knows nothing of ringtrain and serves
:mod:`side`. ``python -m ringtrain.torch`` starts it, or, for gloo, Python itself."""

import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from ddp_nets import NETS, batch_of
from side import options_and_rank, serve, timed
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SETTINGS = {"broadcast_buffers": False, "gradient_as_bucket_view": True, "static_graph": True}


class Examples(Dataset):
    """The examples of one batch again and again; images are padded and cropped, as for training."""

    def __init__(self, x: torch.Tensor, labels: torch.Tensor):
        self._x, self._labels = x, labels.view(len(x), -1)

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int):
        at = index % len(self._x)
        x = self._x[at]
        return pad(x, (4, 4, 4, 4))[:, 4:-4, 4:-4] if x.dim() == 3 else x, self._labels[at]


class Net:
    """A net under DDP with fused SGD. The learning rate is 0: all iterations compute the same. Batches come from
    ``workers`` processes of a DataLoader; 0: one batch lies ready.
    """

    def __init__(self, name: str, workers: int):
        torch.manual_seed(0)
        self._model = DistributedDataParallel(NETS[name](), **SETTINGS)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.0, momentum=0.9, fused=True)
        x, labels = batch_of(name, dist.get_rank())
        self._batches = repeat((x, labels))
        if workers:
            self._batches = iter(DataLoader(Examples(x, labels), len(x), num_workers=workers))

    def iterate(self) -> None:
        x, labels = next(self._batches)
        self._optimizer.zero_grad(set_to_none=True)
        cross_entropy(self._model(x), labels.flatten()).backward()
        self._optimizer.step()

    def gradients(self) -> np.ndarray:
        """Return the mean over ranks of all gradients, as one row."""
        return torch.cat([each.grad.flatten() for each in self._model.parameters()]).numpy()


class Reduction:
    """All-reduces of one float32 tensor, written anew before each."""

    def __init__(self, nbytes: int):
        self._tensor, self._calls = torch.zeros(nbytes // 4), 0

    def __call__(self) -> float:
        """Return the seconds of a call, without those of writing. Raises ValueError for a wrong sum."""
        self._calls = self._calls % 1000 + 1
        self._tensor.fill_(self._calls + dist.get_rank())
        began = time.perf_counter()
        dist.all_reduce(self._tensor)
        seconds = time.perf_counter() - began
        size = dist.get_world_size()
        wanted = size * self._calls + size * (size - 1) // 2
        looked_at = self._tensor if self._calls == 1 else self._tensor[-1]
        if not (looked_at == wanted).all():
            raise ValueError(f"an all-reduce of {self._tensor.numel()} numbers is not {wanted} throughout")
        return seconds


def handlers(options) -> dict[str, Callable]:
    """Return what :func:`side.serve` does here. ``options``: folder, side"""
    measured: dict = {}  # nets by name, reductions by size

    def make(name: str) -> None:
        measured.clear()  # one net is in memory at a time
        measured[name] = Net(name, options.workers)

    def work(name: str) -> None:
        measured[name].iterate()
        if dist.get_rank() == 0:
            np.save(Path(options.folder) / f"{options.side}.npy", measured[name].gradients())

    def block(name: str, iterations: int) -> float:
        return timed(measured[name].iterate, lambda: None, iterations)

    def reduce(nbytes: int, iterations: int) -> float:
        reduction = measured.setdefault(nbytes, Reduction(nbytes))
        return sum(reduction() for _ in range(iterations)) / iterations

    return {"make": make, "work": work, "block": block, "reduce": reduce}


def join(options, rank: int) -> None:
    torch.set_num_threads(options.threads)
    if options.side == "gloo":
        method = f"file://{options.folder}/meet"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=options.ranks)
    else:
        dist.init_process_group()


if __name__ == "__main__":
    options, rank = options_and_rank()
    join(options, rank)
    serve(handlers(options))
    dist.destroy_process_group()
