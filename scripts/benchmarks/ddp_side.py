"""A rank of one side of `scripts/bench ddp`: a script of PyTorch, which knows nothing of ringtrain and serves
:mod:`side`. ``python -m ringtrain.torch`` starts it, or, for gloo, Python itself."""

import os
import time
from collections.abc import Callable
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from side import options_and_rank, serve, timed
from torch import nn
from torch.nn.functional import cross_entropy, gelu, pad, relu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WARM_UP = 5  # iterations: DDP makes its buckets anew, and ringtrain moves them to shared memory
SETTINGS = {"broadcast_buffers": False, "gradient_as_bucket_view": True, "static_graph": True}


# ── nets, each with a batch of a rank ─────────────────────────────────────────────────────────────────────────
def conv(channels_in: int, channels: int, kernel: int, stride: int) -> list[nn.Module]:
    """Return a convolution without bias, and its normalisation."""
    return [nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels)]


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        second = conv(channels, channels, 3, 1)
        self.body = nn.Sequential(*conv(channels_in, channels, 3, stride), nn.ReLU(inplace=True), *second)
        is_projected = stride != 1 or channels_in != channels
        self.shortcut = nn.Sequential(*(conv(channels_in, channels, 1, stride) if is_projected else ()))

    def forward(self, x):
        return relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 with the stem for CIFAR: one 3 x 3 convolution, no pooling. 11.2 million weights"""
    layers, channels_in = [*conv(3, 64, 3, 1), nn.ReLU(inplace=True)], 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels_in, channels, stride), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """50.4 million weights, in five layers."""
    pairs = pairwise((1024, 4096, 4096, 4096, 3072, 10))
    return nn.Sequential(*[layer for widths in pairs for layer in (nn.Linear(*widths), nn.ReLU())][:-1])


class GPT(nn.Module):
    """A decoder of bytes: 6 layers, 6 heads, width 384. 10.9 million weights"""

    WORDS, WIDTH, LENGTH = 256, 384, 128

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(self.WORDS, self.WIDTH)
        self.places = nn.Parameter(torch.randn(self.LENGTH, self.WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(self.WIDTH, 6, 4 * self.WIDTH, 0.0, gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, nn.LayerNorm(self.WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, self.WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH))

    def forward(self, x):
        """[N, LENGTH] → logits [N * LENGTH, WORDS]"""
        y = self.layers(self.words(x) + self.places, mask=self.mask, is_causal=True)
        return self.head(y).flatten(0, 1)


NETS = {"resnet18": resnet18, "mlp": mlp, "gpt": GPT}
BATCHES = {"resnet18": 32, "mlp": 32, "gpt": 4}  # of a rank


def batch_of(name: str, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, labels) of a rank, always the same."""
    numbers, batch = torch.Generator().manual_seed(1 + rank), BATCHES[name]
    if name == "gpt":
        words = torch.randint(0, GPT.WORDS, (batch, GPT.LENGTH + 1), generator=numbers)
        return words[:, :-1], words[:, 1:].flatten()
    shape = (3, 32, 32) if name == "resnet18" else (1024,)
    return torch.randn(batch, *shape, generator=numbers), torch.randint(0, 10, (batch,), generator=numbers)


# ── measurements ──────────────────────────────────────────────────────────────────────────────────────────────
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
    ``workers`` processes of a DataLoader; 0: one batch lies ready. ``exchanged``: whether there is a DDP.
    """

    def __init__(self, name: str, workers: int, exchanged: bool = True):
        torch.manual_seed(0)
        self._model = NETS[name]()
        if exchanged:
            self._model = DistributedDataParallel(self._model, **SETTINGS)
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

    def alone(name: str, iterations: int) -> float:
        measured.clear()  # one net is in memory at a time
        net = Net(name, options.workers, exchanged=False)
        for _ in range(WARM_UP):
            net.iterate()
        dist.barrier()
        return timed(net.iterate, iterations)

    def make(name: str) -> None:
        measured[name] = Net(name, options.workers)

    def work(name: str) -> None:
        measured[name].iterate()
        if dist.get_rank() == 0:
            np.save(Path(options.folder) / f"{options.side}.npy", measured[name].gradients())
        for _ in range(WARM_UP):
            measured[name].iterate()

    def block(name: str, iterations: int) -> float:
        return timed(measured[name].iterate, iterations)

    def reduce(nbytes: int, iterations: int) -> float:
        reduction = measured.setdefault(nbytes, Reduction(nbytes))
        return sum(reduction() for _ in range(iterations)) / iterations

    return {"alone": alone, "make": make, "work": work, "block": block, "reduce": reduce}


def join(options, rank: int) -> None:
    torch.set_num_threads(options.threads)
    if options.side == "gloo":
        if options.hosts > 1:
            os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # of scripts/cluster
        method = f"file://{options.folder}/meet"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=options.ranks)
    else:
        dist.init_process_group()


if __name__ == "__main__":
    options, rank = options_and_rank()
    join(options, rank)
    serve(handlers(options))
    dist.destroy_process_group()
