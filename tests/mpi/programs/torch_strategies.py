"""A script of DDP that knows no strategy: OUT RECIPES STEPS [TURNS]. It trains a network by each recipe, and saves the
weights of each rank. TURNS is a row of ranks: each steps in its turns, while the others wait."""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.mpi.torch_references import GPT, RECIPES, make_net, run_passes


def train(recipe: str, steps: int, turns: list[int]) -> list[torch.Tensor]:
    rank, step = dist.get_rank(), 0
    net = DistributedDataParallel(make_net())
    optimizer = RECIPES[recipe](net)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    for turn in turns or [rank] * steps:
        if turn == rank:
            optimizer.zero_grad()
            run_passes(net, rank, step)
            optimizer.step()
            schedule.step()
            step += 1
        if turns:
            dist.barrier()
    return [weight.clone() for weight in net.module.state_dict().values()]


def elements_of_gpt() -> int:
    """Make one step of a GPT; the elements of state that this rank's optimizer has."""
    net = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(net.parameters())
    text = torch.randint(0, 256, (1, 65), generator=torch.Generator().manual_seed(dist.get_rank()))
    cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
    optimizer.step()
    states = (state for state in optimizer.state.values() for state in state.values())
    return sum(value.numel() for value in states if value.dim())


def main(out: str, recipes: str, steps: str, *turns: str):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if recipes == "gpt":
        results = {"elements": elements_of_gpt()}
    else:
        results = {recipe: train(recipe, int(steps), [*map(int, turns)]) for recipe in recipes.split(",")}
    torch.save(results, f"{out}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
