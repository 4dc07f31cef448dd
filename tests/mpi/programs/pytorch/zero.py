"""ZeroRedundancyOptimizer beside DDP, on a backend that the script does not name."""

import json

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.set_num_threads(1)
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5)))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-2)
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(20):
        x, y = torch.randn(12, 20, generator=data), torch.randn(12, 5, generator=data)
        optimizer.zero_grad()
        loss = mse_loss(net(x[rank::size]), y[rank::size])
        loss.backward()
        optimizer.step()
        every = loss.detach().clone()
        dist.all_reduce(every)
        losses.append(every.item() / size)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        held = len(optimizer.state_dict()["state"])
        print(json.dumps({"losses": losses, "held": held}))


main()
