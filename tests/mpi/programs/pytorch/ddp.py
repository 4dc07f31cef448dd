"""DistributedDataParallel as its users write it: buffers, several buckets, accumulated gradients, an unused layer."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

AS_VIEW, UNUSED = "as_view" in sys.argv, "unused" in sys.argv


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
        )
        self.head, self.other = torch.nn.Linear(256, 10), torch.nn.Linear(256, 10)

    def forward(self, x, which):
        return (self.other if which else self.head)(torch.relu(self.body(x)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP gives all ranks the weights of rank 0
    net = DistributedDataParallel(
        Net() if UNUSED else torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10)),
        bucket_cap_mb=0.1,
        gradient_as_bucket_view=AS_VIEW,
        find_unused_parameters=UNUSED,
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    data = torch.Generator().manual_seed(1)
    losses = []
    for step in range(20):
        x, y = torch.randn(60, 64, generator=data), torch.randint(0, 10, (60,), generator=data)
        more = (step % 2,) if UNUSED else ()
        start, stop = (each * 60 // size for each in (rank, rank + 1))
        first, second = slice(start, start + 60 // size // 2), slice(start + 60 // size // 2, stop)
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        with net.no_sync():
            cross_entropy(net(x[first], *more), y[first]).backward()
        loss = cross_entropy(net(x[second], *more), y[second])
        loss.backward()
        optimizer.step()
        every = loss.detach().clone()
        dist.all_reduce(every)
        losses.append(every.item() / size)
    total = torch.stack([p.detach().double().sum() for p in net.parameters()]).sum().reshape(1)
    ends = [torch.empty_like(total) for _ in range(size)]
    dist.all_gather(ends, total)
    if rank == 0:
        print(json.dumps({"losses": losses, "replicas": [end.item() for end in ends]}))


main()
