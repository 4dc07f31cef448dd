"""The twin of gpt-small.toml as PyTorch's users write one: it knows DistributedDataParallel, and ringtrain only to log
and to evaluate.

    mpirun -np 4 python -m ringtrain.torch --sync averaging --out runs/a scripts/benchmarks/gpt_small.py topics.h5
"""

import argparse
import math
import os

import h5py
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ringtrain.torch import log_step, synchronize

WIDTH, HEADS, BLOCKS, TOKENS, BATCH = 64, 4, 2, 128, 32
RATE, DECAY, WARM_UP = 0.002, 0.1, 0.05


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(TOKENS, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, BLOCKS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and "in_proj" not in name and "out_proj" not in name:
                nn.init.normal_(parameter, std=0.007 if "linear2" in name else 0.02)

    def forward(self, text):
        hidden = self.bytes(text) + self.places.weight
        return self.out(self.blocks(hidden, self.mask, is_causal=True))


def loss_of(net, text, following):
    return cross_entropy(net(text).flatten(0, 1), following.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--evaluate-every", type=int, default=20)
    options = parser.parse_args()
    with h5py.File(options.data) as file:
        train, test = (
            [torch.tensor(file[part][name][:]).long() for name in ("images", "labels")] for part in ("train", "test")
        )
    dist.init_process_group("gloo")
    rank, size, seed = dist.get_rank(), dist.get_world_size(), int(os.environ.get("RINGTRAIN_SEED", 0))
    torch.manual_seed(seed)
    model = GPT()
    net = DistributedDataParallel(model)
    matrices = [each for each in net.parameters() if each.ndim > 1]
    others = [each for each in net.parameters() if each.ndim < 2]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, (0.9, 0.95), weight_decay=DECAY)
    warm_up = WARM_UP * options.iterations
    turn = math.pi / options.iterations
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(turn * step))
    )
    share, in_epoch = BATCH // size, len(train[0]) // BATCH
    for iteration in range(options.iterations):
        if iteration % in_epoch == 0:
            order = torch.randperm(len(train[0]), generator=torch.Generator().manual_seed(seed + iteration))
        first = iteration % in_epoch * BATCH + rank * share
        chosen = order[first : first + share]
        optimizer.zero_grad()
        loss = loss_of(net, train[0][chosen], train[1][chosen])
        loss.backward()
        optimizer.step()
        scheduler.step()
        log_step(step=iteration + 1, loss=loss)
        if (iteration + 1) % options.evaluate_every == 0:
            synchronize()
            if rank == 0:
                with torch.no_grad():
                    log_step(step=iteration + 1, test_loss=loss_of(model, *test))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
