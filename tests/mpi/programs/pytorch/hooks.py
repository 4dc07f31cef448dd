"""DDP with every hook and context for its gradients that PyTorch ships: 50 steps, three buckets; the weights then.

Arguments are names of cases; without any they are all that gloo runs too.
"""

import contextlib
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


class Net(torch.nn.Module):
    """Buckets of 18 and 20 KiB and a small one; the branch that is not taken has no gradient."""

    def __init__(self, branches=1):
        super().__init__()
        self.body = torch.nn.Linear(64, 72)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(72, 72) for _ in range(branches))
        self.head = torch.nn.Linear(72, 4)

    def forward(self, x, step):
        return self.head(torch.relu(self.branches[step % len(self.branches)](torch.relu(self.body(x)))))


def ddp(branches=1, bucket_cap_mb=0.01, **named):
    torch.manual_seed(RANK)  # DDP gives all ranks the weights of rank 0
    return DistributedDataParallel(Net(branches), bucket_cap_mb=bucket_cap_mb, **named)


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


def train(net, optimizer=None, steps=range(STEPS), quiet=(), after=lambda: None):
    """Train, and return the sum of the losses and that of the weights on this rank. ``quiet``: steps in no_sync."""
    total = 0.0
    for step in steps:
        data = torch.Generator().manual_seed(100 * step + RANK)
        x, y = torch.randn(6, 64, generator=data), torch.randn(6, 4, generator=data)
        if optimizer is not None and step - 1 not in quiet:
            optimizer.zero_grad()
        with net.no_sync() if step in quiet else contextlib.nullcontext():
            loss = (net(x, step) - y).square().mean()
            loss.backward()
        if optimizer is not None and step not in quiet:
            optimizer.step()
        after()
        total += loss.item()
    return [total, *[p.detach().double().abs().sum().item() for p in net.parameters()]]


def unhooked(branches=1, quiet=(), **named):
    net = ddp(branches, **named)
    return train(net, sgd(net), quiet=quiet)


def hooked(hook, state=None, **named):
    net = ddp(**named)
    net.register_comm_hook(state, hook)
    return train(net, sgd(net))


def built_in(kind):
    net = ddp()
    net._register_builtin_comm_hook(kind)
    return train(net, sgd(net))


def joined(branches=1, zero=False, **named):
    """Rank r has 3 r steps less; each has steps with all before and after."""
    net = ddp(branches, find_unused_parameters=branches > 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)  # a momentum would stay behind that of other ranks
    if zero:
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.05)
    train(net, optimizer, range(5))
    for first in (5, 25):
        with Join([net, optimizer], **named) if zero else net.join(**named):
            got = train(net, optimizer, range(first, first + 20 - 3 * RANK))
    if dist.get_backend() == "ringtrain":
        assert dist.group.WORLD.shared_buckets.buckets_of(net.reducer.group)
    return train(net, optimizer, range(45, 50)) + got[:1]


def powers(wrap=lambda hook: hook, **named):
    state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=3)
    return hooked(wrap(powerSGD_hook.powerSGD_hook), state, **named)


def local(averager):
    net = ddp()
    alone = dist.new_subgroups(1)[0]
    net.register_comm_hook(post_localSGD_hook.PostLocalSGDState(None, alone, 10), post_localSGD_hook.post_localSGD_hook)
    return train(net, PostLocalSGDOptimizer(sgd(net), averager()))


def averaged():
    """Models averaged in groups of 2 and of all, as far as there are such groups."""
    net = ddp()
    averager = HierarchicalModelAverager({2: 1, 4: SIZE} if SIZE % 2 == 0 and SIZE > 2 else {4: SIZE}, warmup_steps=5)
    inner = net.module
    optimizer = torch.optim.SGD(inner.parameters(), 0.05)
    inner.no_sync = contextlib.nullcontext
    return train(inner, optimizer, after=lambda: averager.average_parameters(inner.parameters()))


def zero_step(make):
    net = ddp(static_graph=True)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05)
    net.register_comm_hook(None, make(default_hooks.allreduce_hook, net, optimizer))
    got = train(net)
    dist.barrier()
    return got


def resized():
    """A hook that replaces the storage of the bucket."""
    op, divisor = (dist.ReduceOp.SUM, SIZE) if dist.get_backend() == "gloo" else (dist.ReduceOp.AVG, 1)

    def hook(state, bucket):
        buffer, length = bucket.buffer(), bucket.buffer().numel()
        buffer.resize_(length + 16)
        buffer[length:] = 0
        work = dist.all_reduce(buffer, op, async_op=True)
        return work.get_future().then(lambda done: done.value()[0][:length].div_(divisor))

    return hooked(hook)


CASES = {
    "plain": unhooked,
    "as_view": lambda: unhooked(gradient_as_bucket_view=True),
    "static": lambda: unhooked(static_graph=True),
    "unused": lambda: unhooked(2, find_unused_parameters=True),
    "no_sync": lambda: unhooked(quiet=range(0, STEPS, 3)),
    "allreduce_hook": lambda: hooked(default_hooks.allreduce_hook),
    "fp16_hook": lambda: hooked(default_hooks.fp16_compress_hook),
    "noop_hook": lambda: hooked(debugging_hooks.noop_hook),
    "built_in": lambda: built_in(dist.BuiltinCommHookType.ALLREDUCE),
    "built_in_fp16": lambda: built_in(dist.BuiltinCommHookType.FP16_COMPRESS),
    "power": powers,
    "power_one_bucket": lambda: powers(bucket_cap_mb=25),
    "power_fp16": lambda: powers(wrap=default_hooks.fp16_compress_wrapper),
    "quantized": lambda: hooked(quantization_hooks.quantization_pertensor_hook, dist.group.WORLD),
    "local": lambda: local(lambda: PeriodicModelAverager(4, warmup_steps=10)),
    "averaged": averaged,
    "zero_step": lambda: zero_step(ddp_zero_hook.hook_with_zero_step),
    "zero_interleaved": lambda: zero_step(ddp_zero_hook.hook_with_zero_step_interleaved),
    "resized": resized,
    "join": joined,
    "join_few": lambda: joined(divide_by_initial_world_size=False),
    "join_unused": lambda: joined(2),
    "join_zero": lambda: joined(zero=True),
}


# gloo has no overlap of ZeRO, and no order of the collectives of two buckets' callbacks.
ALONE = ("power", "power_fp16", "quantized", "zero_step", "zero_interleaved")
ROUNDED = ("fp16_hook", "built_in_fp16") if SIZE > 2 else ()  # float16 is summed in another order
names = sys.argv[1:] or [name for name in CASES if name not in ALONE + ROUNDED]
every = [None] * SIZE
dist.all_gather_object(every, {name: CASES[name]() for name in names})
if RANK == 0:
    ends = {name: [number for end in every for number in end[name]] for name in names}
    print(json.dumps({"losses": [loss for name in names for loss in ends[name][:1]], **ends}))
