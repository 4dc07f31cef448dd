"""What PyTorch shards: ZeroRedundancyOptimizer beside DDP, on a backend that the script does not name; FSDP2
(fully_shard), with gradients clipped, and the whole weights gathered at the end."""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def zero():
    dist.init_process_group()
    torch.manual_seed(dist.get_rank())
    net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5)))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-2)
    losses = train(net, optimizer, 20, 5)
    optimizer.consolidate_state_dict(to=0)
    return {"losses": losses, "kept": len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else 0}


def fsdp2():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(33, 33), torch.nn.Tanh()) for _ in range(3)])
    mesh = torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (*net, net):
        fully_shard(layer, mesh=mesh)
    clip = lambda: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # noqa: E731
    losses = train(net, torch.optim.AdamW(net.parameters(), 1e-2), 33, 33, clip)
    return {"losses": losses, "total": sum(p.full_tensor().double().sum().item() for p in net.parameters())}


def train(net, optimizer, width, outputs, clip=lambda: None):
    """The losses of 20 steps."""
    rank, size, data, losses = dist.get_rank(), dist.get_world_size(), torch.Generator().manual_seed(1), []
    for _ in range(20):
        x, y = torch.randn(12, width, generator=data), torch.randn(12, outputs, generator=data)
        optimizer.zero_grad()
        loss = mse_loss(net(x[rank::size]), y[rank::size])
        loss.backward()
        clip()
        optimizer.step()
        every = loss.detach().clone()
        dist.all_reduce(every)
        losses.append(every.item() / size)
    return losses


torch.set_num_threads(1)
result = {"zero": zero, "fsdp2": fsdp2}[sys.argv[1]]()
if dist.get_rank() == 0:
    print(json.dumps(result))
