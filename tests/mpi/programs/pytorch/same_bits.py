"""same_bits.py NETWORK PATH [WORDS]: trains on this rank's share of each global batch, and prints the hash of a sum.
``parts``: by parts of the batch. ``stop N``, ``resume``: saves PATH after N steps, goes on from it.
``one-core``: on one core."""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import ringtrain.torch

BATCH, STEPS, CLASSES = 24, 8, 5


class Block(nn.Module):
    """Two convolutions with batch normalisation beside a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        layers = [(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()) for _ in range(2)]
        self.layers = nn.Sequential(*(layer for each in layers for layer in each))

    def forward(self, x):
        return x + self.layers(x)


class Attention(nn.Module):
    """A transformer's encoder over rows of pixels as tokens, with dropout."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(x.flatten(1, 2)).mean(1))


NETS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, CLASSES)),
    "resnet": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3), Block(8), Block(8), nn.Flatten(), nn.Linear(8 * 14**2, CLASSES)
    ),
    "attention": Attention,
}


def main(name: str, path: str, *words: str) -> None:
    if "one-core" in words:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = DistributedDataParallel(NETS[name]())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    first, last = 0, int(words[words.index("stop") + 1]) if "stop" in words else STEPS
    if "resume" in words:
        saved = torch.load(path)
        first = saved["step"]
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        ringtrain.torch.load_state_dict(saved["strategy"])
    for step in range(first, last):
        numbers = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, 1, 16, 16, generator=numbers)
        y = torch.randint(CLASSES, (BATCH,), generator=numbers)
        batch = {"x": x.chunk(size)[rank], "of": [y.chunk(size)[rank], "a label"]}
        optimizer.zero_grad()
        if "parts" in words:
            for part in ringtrain.torch.parts(batch):
                cross_entropy(net(part["x"]), part["of"][0]).backward()
        else:
            torch.manual_seed(1000 * step + rank)  # of dropout
            cross_entropy(net(batch["x"]), batch["of"][0]).backward()
        optimizer.step()
    strategy = ringtrain.torch.state_dict()
    if rank == 0 and "stop" in words:
        state = {"step": last, "net": net.state_dict(), "optimizer": optimizer.state_dict(), "strategy": strategy}
        torch.save(state, path)
    sums = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
    dist.all_reduce(sums)
    if rank == 0:
        print("sum", hashlib.sha256(sums.numpy().tobytes()).hexdigest())


main(*sys.argv[1:])
