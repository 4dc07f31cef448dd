"""FSDP2: fully_shard, with gradients clipped, and the whole weights gathered at the end."""

import json

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(33, 33), torch.nn.Tanh()) for _ in range(3)])
    mesh = torch.distributed.init_device_mesh("cpu", (size,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(20):
        x, y = torch.randn(12, 33, generator=data), torch.randn(12, 33, generator=data)
        optimizer.zero_grad()
        loss = mse_loss(net(x[rank::size]), y[rank::size])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        every = loss.detach().clone()
        dist.all_reduce(every)
        losses.append(every.item() / size)
    total = sum(p.full_tensor().double().sum().item() for p in net.parameters())
    if rank == 0:
        print(json.dumps({"losses": losses, "total": total}))


main()
