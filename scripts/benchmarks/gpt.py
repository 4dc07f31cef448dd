"""A GPT of bytes as PyTorch's users write one: it knows DistributedDataParallel and no strategy. It reads the
text of Python's own library, prints the loss of each step, and at its end the median time of a step in milliseconds.

    mpirun -np 4 python -m ringtrain.torch --sync gossip scripts/benchmarks/gpt.py --steps 100
"""

import argparse
import os
import sysconfig
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3  # steps that are not timed


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, tokens: int):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(tokens, width)
        block = nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, text):
        hidden = self.bytes(text) + self.places.weight[: text.shape[1]]
        return self.out(self.blocks(hidden, self.mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    for name, default in {"steps": 100, "width": 192, "layers": 6, "batch": 1, "tokens": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(GPT(options.width, options.layers, options.tokens))
    optimizer = torch.optim.AdamW(net.parameters(), options.lr)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    torch.manual_seed(1000 * int(os.environ.get("RINGTRAIN_SEED", 0)) + dist.get_rank())
    times = []
    for step in range(options.steps):
        starts = torch.randint(len(text) - options.tokens, (options.batch, 1))
        batch, began = text[starts + torch.arange(options.tokens + 1)], time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - began))
        if dist.get_rank() == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        parameters = sum(parameter.numel() for parameter in net.parameters())
        print(f"{parameters:,} parameters, median {median(times[WARM_UP:]):.1f} ms a step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
