"""Nets as PyTorch's users train them, on random examples, for scripts/bench plan. The layers of "paced" wait in place
of computing, so that other work on the machine does not change their times.

mpirun -np 2 python -m ringtrain.torch scripts/benchmarks/torch_nets.py conv --batch 16 --steps 30
"""

import argparse
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from gpt_small import GPT, TOKENS
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class ConvNet(nn.Sequential):
    def __init__(self):
        widths, layers = (3, 32, 64, 128, 128), []
        for i, (before, after) in enumerate(pairwise(widths)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if i < 3 else []
        super().__init__(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        time.sleep(0.005)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.010)
        return gradient


class Paced(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(Wait.apply(inputs.requires_grad_()))
        return inputs


SHAPES = {"mlp": (784,), "conv": (3, 32, 32), "paced": (512,)}


def examples(net: str, batch: int):
    if net == "gpt":
        text = torch.randint(256, (batch, TOKENS + 1))
        return text[:, :-1], text[:, 1:].flatten()
    return torch.randn(batch, *SHAPES[net]), torch.randint(10, (batch,))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=(*SHAPES, "gpt"))
    parser.add_argument("--batch", type=int, required=True, help="of a rank")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = DistributedDataParallel({"mlp": MLP, "conv": ConvNet, "gpt": GPT, "paced": Paced}[options.net]())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(options.steps):
        inputs, labels = examples(options.net, options.batch)
        optimizer.zero_grad()
        cross_entropy(net(inputs).flatten(0, -2), labels).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
