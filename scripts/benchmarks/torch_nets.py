"""Three nets as PyTorch's users train them, on random examples: what scripts/bench scripts measures.

mpirun -np 2 python -m ringtrain.torch scripts/benchmarks/torch_nets.py conv --batch 16 --steps 30
"""

import argparse
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


def examples(net: str, batch: int):
    if net == "gpt":
        text = torch.randint(256, (batch, TOKENS + 1))
        return text[:, :-1], text[:, 1:].flatten()
    return torch.randn(batch, *((784,) if net == "mlp" else (3, 32, 32))), torch.randint(10, (batch,))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=("mlp", "conv", "gpt"))
    parser.add_argument("--batch", type=int, required=True, help="of a rank")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = DistributedDataParallel({"mlp": MLP, "conv": ConvNet, "gpt": GPT}[options.net]())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(options.steps):
        inputs, labels = examples(options.net, options.batch)
        optimizer.zero_grad()
        cross_entropy(net(inputs).flatten(0, -2), labels).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
