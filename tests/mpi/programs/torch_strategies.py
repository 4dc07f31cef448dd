"""A script of DDP that knows no strategy: OUT RECIPES STEPS. It trains a network by each recipe, and saves the
weights of each rank."""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.mpi.torch_references import GPT, RECIPES, make_net, run_passes


def train(recipe: str, steps: int) -> list[torch.Tensor]:
    net = DistributedDataParallel(make_net())
    optimizer = RECIPES[recipe](net)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    for step in range(steps):
        optimizer.zero_grad()
        run_passes(net, dist.get_rank(), step)
        optimizer.step()
        schedule.step()
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


def main(out: str, recipes: str, steps: str):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if recipes == "gpt":
        results = {"elements": elements_of_gpt()}
    else:
        results = {recipe: train(recipe, int(steps)) for recipe in recipes.split(",")}
    torch.save(results, f"{out}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
