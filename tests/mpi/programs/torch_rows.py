"""What a script of DDP may do, under a strategy: torch_rows.py "CASE; CASE" [own|apart]. Each case compares with one
process that trains on the batches of all ranks, in float64, and prints "CASE: all is well"; or it does what is refused.

own:   a gradient is this rank's own between backward and step
apart: ranks have weights of their own
"""

import contextlib
import copy
import io
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ringtrain.torch

STEPS, CLASSES = 12, 5
loss_of = nn.functional.cross_entropy


class Net(nn.Module):
    """``odd`` is used by some batches of rank 0 alone, ``never`` by none."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(12, 33), nn.Linear(33, 17), nn.Linear(17, CLASSES)
        self.odd, self.never, self.scale = nn.Linear(12, CLASSES), nn.Linear(3, 3), nn.Parameter(torch.ones(()))
        self.saves_memory = False

    def forward(self, x, odd=False):
        y = torch.tanh(self.first(x))
        y = checkpoint(self.second, y, use_reentrant=False) if self.saves_memory else self.second(y)
        y = self.last(torch.tanh(y)) * self.scale
        return y + self.odd(x) if odd else y


def stepped(ddp, optimizer, steps, loss=lambda ddp, x, y: loss_of(ddp(x), y)):
    """Train on this rank's batches."""
    for step in range(steps):
        optimizer.zero_grad()
        loss(ddp, *batch(step, rank)).backward()
        optimizer.step()


class WithEmpty(Net):
    def __init__(self):
        super().__init__()
        self.empty = nn.Parameter(torch.zeros(CLASSES, 0))

    def forward(self, x, odd=False):
        return super().forward(x, odd) + nn.functional.linear(x[:, :0], self.empty)


def batch(step, rank, micro=0):
    generator = torch.Generator().manual_seed(step * 100 + rank * 10 + micro)
    x = torch.randn(6, 12, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (6,), generator=generator)


def is_odd(step, rank):
    return rank == 0 and step % 2 == 1


def groups(net):
    last = {id(p) for p in net.last.parameters()}
    return [
        {"params": [p for p in net.parameters() if id(p) not in last]},
        {"params": net.last.parameters(), "lr": 3e-3},
    ]


def optimizer_of(net):
    first, second = groups(net)
    optimizer = torch.optim.AdamW([first], lr=1e-2)
    optimizer.add_param_group(second)
    return optimizer


class Pair:
    """A net under DDP, and the same in one process."""

    def __init__(self, make=Net, **ddp):
        torch.manual_seed(0)
        self.net = make().double()
        self.serial = copy.deepcopy(self.net)
        self.ddp = DistributedDataParallel(self.net, **ddp)
        self.optimizer, self.reference = optimizer_of(self.net), optimizer_of(self.serial)
        make = torch.optim.lr_scheduler.CosineAnnealingLR
        self.schedules = make(self.optimizer, STEPS), make(self.reference, STEPS)

    def serial_step(self, step, micros=1, clip=None):
        self.reference.zero_grad()
        for rank in range(size):
            for micro in range(micros):
                x, y = batch(step, rank, micro)
                (loss_of(self.serial(x, is_odd(step, rank)), y) / micros / size).backward()
        norm = clip(self.serial.parameters()) if clip else None
        self.reference.step()
        for schedule in self.schedules:
            schedule.step()
        return norm

    def backward(self, step, micro=0, micros=1):
        x, y = batch(step, rank, micro)
        (loss_of(self.ddp(x, is_odd(step, rank)), y) / micros).backward()

    def check(self):
        state = self.net.state_dict()
        for name, value in self.serial.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=0, atol=1e-9, msg=lambda text, name=name: name + text)
        assert isinstance(self.ddp._get_ddp_logging_data(), dict)  # Lightning asks at its end


def trained(pair, backward):
    for step in range(STEPS):
        pair.optimizer.zero_grad()
        backward(step)
        pair.optimizer.step()
        pair.serial_step(step)
    pair.check()


def train(micros=1, sync="all", clip=None, set_to_none=True, **ddp):
    pair = Pair(**ddp)
    for step in range(STEPS):
        pair.optimizer.zero_grad(set_to_none=set_to_none)
        for micro in range(micros):
            last = micro == micros - 1
            if sync == "attribute":
                pair.ddp.require_backward_grad_sync = last
            with pair.ddp.no_sync() if sync == "last" and not last else contextlib.nullcontext():
                pair.backward(step, micro, micros)
        norm = clip(pair.net.parameters()) if clip else None
        pair.optimizer.step()
        wanted = pair.serial_step(step, micros, clip)
        assert wanted is None or abs(norm - wanted) < 1e-9
    pair.check()


def clipped(parameters):
    return torch.nn.utils.clip_grad_norm_(parameters, 0.05)


def clipped_to_largest(parameters):
    return torch.nn.utils.clip_grad_norm_(list(parameters), 0.05, norm_type=float("inf"))


def closure():
    pair = Pair()
    for step in range(STEPS):

        def forward_and_backward(step=step):
            pair.optimizer.zero_grad()
            pair.backward(step)
            return 7.0

        assert pair.optimizer.step(forward_and_backward) == 7.0
        pair.serial_step(step)
    pair.check()


def compiled():
    pair = Pair(find_unused_parameters=True)
    run = torch.compile(pair.ddp, backend="eager")

    def backward(step):
        x, y = batch(step, rank)
        loss_of(run(x, is_odd(step, rank)), y).backward()

    trained(pair, backward)


def checkpointed():
    pair = Pair()
    pair.net.saves_memory = True
    trained(pair, pair.backward)


def overflows(unscale=False, **adamw):
    """In two steps one rank's loss is infinite: all leave them out, and halve the scale."""
    pair = Pair()
    pair.optimizer = torch.optim.AdamW(pair.net.parameters(), 0.01, **adamw)
    pair.reference = torch.optim.AdamW(pair.serial.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    for step in range(14):
        pair.optimizer.zero_grad()
        x, y = batch(step, rank)
        loss = loss_of(pair.ddp(x), y)
        overflow = step in (4, 9)
        scaler.scale(loss * float("inf") if overflow and rank == size - 1 else loss).backward()
        if unscale:
            scaler.unscale_(pair.optimizer)
            clipped(pair.net.parameters())
        scaler.step(pair.optimizer)
        scaler.update()
        if not overflow:
            pair.reference.zero_grad()
            for each in range(size):
                x, y = batch(step, each)
                (loss_of(pair.serial(x), y) / size).backward()
            if unscale:
                clipped(pair.serial.parameters())
            pair.reference.step()
    ringtrain.torch.synchronize()
    assert scaler.get_scale() == 256.0
    pair.check()


def rounded():
    """Autocast to bfloat16: all ranks have the same weights, near those of one process."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, CLASSES))
    ddp, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.1)

    def loss(ddp, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(ddp(x.float()), y)

    stepped(ddp, optimizer, STEPS, loss)
    ringtrain.torch.synchronize()
    check_alike(net)


def gradient_between():
    """All-reduce: the mean is there between backward and step, and a change to it counts. Others: this rank's own."""
    pair = Pair()
    pair.backward(0)
    x, y = batch(0, rank)
    local = torch.autograd.grad(loss_of(pair.net(x), y), pair.net.second.weight)[0]
    loss = sum(loss_of(pair.serial(*batch(0, each)[:1]), batch(0, each)[1]) / size for each in range(size))
    mean = torch.autograd.grad(loss, pair.serial.second.weight)[0]
    torch.testing.assert_close(pair.net.second.weight.grad, local if "own" in sys.argv else mean)
    pair.net.second.weight.grad.zero_()
    before = pair.net.second.weight.detach().clone()
    pair.optimizer.step()
    if "own" not in sys.argv:
        decayed = before * (1 - 1e-2 * 1e-2)
        torch.testing.assert_close(pair.net.second.weight.detach(), decayed, rtol=0, atol=1e-9)


def linear_modules(*shapes):
    """Modules of their own; the same in one process; and those under DDP."""
    torch.manual_seed(0)
    nets = [nn.Linear(*shape).double() for shape in shapes]
    return nets, copy.deepcopy(nets), [DistributedDataParallel(net) for net in nets]


def adversaries(freeze):
    """A GAN by one loss each; ``freeze``: its discriminator is frozen while the generator is trained."""
    nets, serial, wrapped = linear_modules((12, 12), (12, 1))
    make = torch.optim.AdamW
    ours, theirs = ([make(net.parameters(), 0.01) for net in pair] for pair in (nets, serial))

    def step(pair, optimizers, ranks, number):
        for train_critic in (True, False):
            pair[1].requires_grad_(train_critic or not freeze)
            optimizer = optimizers[train_critic]
            optimizer.zero_grad()
            for each in ranks:
                x = batch(number, each)[0]
                fake = pair[0](x)
                loss = (pair[1](x) - pair[1](fake.detach()).square()) if train_critic else -pair[1](fake).square()
                (loss.mean() / len(ranks)).backward()
            optimizer.step()

    for number in range(STEPS):
        step(wrapped, ours, [rank], number)
        step(serial, theirs, range(size), number)
    ringtrain.torch.synchronize()
    if "apart" not in sys.argv:
        check_modules(nets, serial)
    for net in nets:
        check_alike(net)


def two_modules(together=False):
    nets, serial, (first, second) = linear_modules((12, 8), (8, CLASSES))

    def optimizers(pair):
        if together:
            return [torch.optim.AdamW([p for net in pair for p in net.parameters()], 0.01)]
        return [torch.optim.AdamW(pair[0].parameters(), 0.01), torch.optim.SGD(pair[1].parameters(), 0.1)]

    ours, theirs = optimizers(nets), optimizers(serial)
    for step in range(STEPS):
        x, y = batch(step, rank)
        for each in (*ours, *theirs):
            each.zero_grad()
        loss_of(second(torch.tanh(first(x))), y).backward()
        for each in range(size):
            x, y = batch(step, each)
            (loss_of(serial[1](torch.tanh(serial[0](x))), y) / size).backward()
        for each in (*ours, *theirs):
            each.step()
    check_modules(nets, serial)


def check_modules(nets, serial):
    for net, reference in zip(nets, serial, strict=True):
        for a, b in zip(net.state_dict().values(), reference.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def unreached():
    """Rank 0's backward reaches nothing of the second module: the norm is of both, on all ranks."""
    nets, serial, wrapped = linear_modules((12, 8), (12, CLASSES))
    parameters, references = ([p for net in pair for p in net.parameters()] for pair in (nets, serial))
    optimizer, reference = torch.optim.AdamW(parameters, 0.01), torch.optim.AdamW(references, 0.01)

    def loss(pair, step, each):
        x, y = batch(step, each)
        first, second = pair[0](x).square().mean(), loss_of(pair[1](x), y)
        return first if each == 0 else first + second

    for step in range(STEPS):
        optimizer.zero_grad()
        reference.zero_grad()
        loss(wrapped, step, rank).backward()
        sum(loss(serial, step, each) / size for each in range(size)).backward()
        norm, wanted = clipped(parameters), clipped(references)
        assert abs(norm - wanted) < 1e-9, (norm, wanted)
        optimizer.step()
        reference.step()
    check_modules(nets, serial)


def skipped(clip=lambda parameters: None):
    """A step is left out after backward, or when its gradients have been clipped."""
    pair = Pair()
    for step in range(STEPS):
        pair.optimizer.zero_grad()
        pair.backward(step)
        clip(pair.net.parameters())
        if step % 4 != 2:
            pair.optimizer.step()
            pair.serial_step(step, clip=clip)
    pair.check()


def dropped():
    """A module is dropped between backward and step, and another is trained."""
    before, pair = len(ringtrain.torch.state_dict()), Pair()
    pair.backward(0)
    del pair
    alike_after(plain_loss)
    ringtrain.torch.synchronize()
    assert len(ringtrain.torch.state_dict()) == before + 1


def saved():
    """The state of the optimizer is this rank's part."""
    pair = Pair()
    for step in range(2):
        pair.backward(step)
        pair.optimizer.step()
        pair.optimizer.state_dict()


class Plain(torch.optim.Optimizer):
    """Of no library. ``careless``: changes parameters without a gradient too."""

    def __init__(self, parameters, careless=False):
        super().__init__(parameters, {})
        self.careless = careless

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None or self.careless:
                parameter.mul_(0.999).sub_(0.0 if parameter.grad is None else 0.1 * parameter.grad)


def of_no_library(careless=False):
    pair = Pair()
    pair.optimizer, pair.reference = Plain(pair.net.parameters(), careless), Plain(pair.serial.parameters())
    trained(pair, pair.backward)


def late():
    """A layer waits for its own weights alone: in the first layer the updates of others are still owed."""
    pair = Pair()
    updates, owed = pair.ddp.reducer.engine.arenas[0].exchange._updates, []
    pair.net.first.register_forward_pre_hook(lambda layer, inputs: owed.append(len(updates._owed)))
    trained(pair, pair.backward)
    assert owed[0] == 0 < min(owed[1:]), owed


def buffers():
    """Together rank 0's statistics go to all before forward; apart they are averaged with the weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)).double()
    ddp, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.1)
    stepped(ddp, optimizer, 8)
    if "apart" not in sys.argv:
        ddp(batch(9, rank)[0])  # rank 0's come before it, and then each its own
    ringtrain.torch.synchronize() if "apart" in sys.argv else None
    mean = net[1].running_mean.clone()
    every = [torch.empty_like(mean) for _ in range(size)]
    dist.all_gather(every, mean)
    equal = all(torch.equal(each, every[0]) for each in every)
    assert equal == (size == 1 or "apart" in sys.argv), every


def synchronized():
    """Evaluating and saving communicate nothing: rank 0 does it alone. The mean comes by synchronize()."""
    net = nn.Linear(12, CLASSES).double()
    ddp, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.1)
    stepped(ddp, optimizer, 3)
    if rank == 0:
        ddp.eval()
        with torch.no_grad():
            ddp(batch(0, 0)[0])
        ddp.state_dict()
        ddp.train()
    alone = net.weight.detach().clone()
    every = [torch.empty_like(alone) for _ in range(size)]
    dist.all_gather(every, alone)
    ringtrain.torch.synchronize()
    torch.testing.assert_close(net.weight.detach(), sum(every) / size)
    ddp(batch(4, rank)[0])  # training goes on with each rank's own
    torch.testing.assert_close(net.weight.detach(), alone)


def collective():
    """Rank 0 serves the others while it waits for them in a collective that it has started."""
    net = nn.Linear(12, CLASSES).double()
    ddp, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.1)
    for step in range(24):
        if step == (2 if rank == 0 else 20):
            count = torch.ones(1)
            dist.all_reduce(count, async_op=True).wait()
            assert count == size
        optimizer.zero_grad()
        x, y = batch(step, rank)
        loss_of(ddp(x), y).backward()
        optimizer.step()


def in_parallel():
    net = nn.Linear(12, CLASSES).double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    wrapped = ringtrain.torch.parallel(net, optimizer, sync="averaging", average_every=2)
    stepped(wrapped, optimizer, 2)
    check_alike(net)


def check_alike(net):
    every = [None] * size
    dist.all_gather_object(every, [p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for each in every for a, b in zip(each, every[0], strict=True))


class Small(nn.Module):
    """``set_data``: limits the rows of a weight in each forward, as layers with a norm do."""

    def __init__(self, set_data=False, dtypes=(torch.float64, torch.float64)):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(12, 16, dtype=dtypes[0]), nn.Linear(16, 1, dtype=dtypes[1])
        self.set_data = set_data

    def forward(self, x):
        if self.first.weight.dtype is torch.bfloat16:
            return self.last(torch.tanh(self.first(x.bfloat16())).to(self.last.weight.dtype))
        if self.set_data:
            self.first.weight.data = torch.renorm(self.first.weight.data, 2, 0, 0.9)
        return self.last(torch.tanh(self.first(x)))


def alike_after(loss, net=None):
    """Train by ``loss(ddp, net, x)``, of each rank's own batches: the ranks stay alike."""
    net = net or Small()
    ddp, optimizer = DistributedDataParallel(net), torch.optim.AdamW(net.parameters(), 0.01)
    stepped(ddp, optimizer, 4, lambda ddp, x, y: loss(ddp, net, x))
    ringtrain.torch.synchronize()
    check_alike(net)


def penalty(ddp, net, x):
    """A gradient of the input within the loss."""
    x.requires_grad_()
    y = ddp(x)
    return (torch.autograd.grad(y.sum(), x, create_graph=True)[0].square() + y.square()).mean()


def with_features(ddp, net, x):
    """A pass without DDP's wrapper between forward and backward."""
    y = ddp(x)
    net(x)
    return y.square().mean()


def plain_loss(ddp, net, x):
    return ddp(x).square().mean()


def copied():
    """A copy of the module and a saved one know no exchange."""
    net = Small()
    ddp = DistributedDataParallel(net)
    plain_loss(ddp, net, batch(0, rank)[0]).backward()
    teacher = copy.deepcopy(net)
    teacher(batch(0, rank)[0]).sum().backward()
    assert torch.equal(teacher.first.weight, net.first.weight)
    torch.save(net, io.BytesIO())
    torch.save(ddp, io.BytesIO())


def kept_gradients():
    """The gradient of one backward pass stays when another one comes."""
    net = Small()
    ddp = DistributedDataParallel(net)
    plain_loss(ddp, net, batch(0, rank)[0]).backward()
    kept = net.first.weight.grad
    before = kept.clone()
    net.zero_grad()
    plain_loss(ddp, net, batch(1, rank)[0]).backward()
    assert torch.equal(kept, before) and not torch.equal(kept, net.first.weight.grad)


def beside_others():
    """An optimizer's parameters that are in no DDP module are stepped once a step."""
    net, other = Small(), nn.Parameter(torch.ones(3, dtype=torch.float64))
    ddp, optimizer = DistributedDataParallel(net), torch.optim.SGD([*net.parameters(), other], 0.1)
    stepped(ddp, optimizer, 3, lambda ddp, x, y: plain_loss(ddp, net, x) + other.sum())
    torch.testing.assert_close(other.detach(), torch.full((3,), 0.7, dtype=torch.float64))


def caught():
    """A script may go on after an exception in backward, if all ranks do and nothing has left."""
    net = Small()
    ddp, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        y = ddp(batch(step, rank)[0])
        if step == 1:
            y.register_hook(lambda gradient: 1 / 0)
        optimizer.zero_grad()
        with contextlib.suppress(ZeroDivisionError):
            y.square().mean().backward()
            optimizer.step()
    check_alike(net)


def wrapped_again():
    net = Small()
    DistributedDataParallel(net)
    net.first.requires_grad_(False)
    alike_after(plain_loss, net)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────
def thawed():
    net = Net().double()
    net.never.requires_grad_(False)
    ddp = DistributedDataParallel(net)
    net.never.requires_grad_(True)
    ddp(batch(0, rank)[0])


def grown():
    pair = Pair()
    for step in range(2):
        pair.backward(step)
        pair.optimizer.step()
        pair.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def changed_gradient():
    pair = Pair()
    for step in range(2):
        pair.optimizer.zero_grad()
        pair.backward(step)
        pair.net.first.weight.grad.mul_(2)
        pair.optimizer.step()


def second_pass():
    pair = Pair()
    for step in range(2):
        pair.optimizer.zero_grad()
        for micro in range(step + 1):
            pair.backward(step, micro)
        pair.optimizer.step()


def kept_and_clipped():
    """Gradients go on growing when they have been clipped: others' parts are in them then."""
    pair = Pair()
    for step in range(2):
        pair.backward(step)
        clipped(pair.net.parameters())


def shared():
    """Two modules have a part in common."""
    part = Small()
    first, second = (DistributedDataParallel(nn.Sequential(part, nn.Linear(1, 2).double())) for _ in range(2))
    second(batch(0, rank)[0])
    first(batch(0, rank)[0])


def several_calls():
    pair = Pair()
    pair.optimizer = torch.optim.LBFGS(pair.net.parameters())

    def again():
        pair.optimizer.zero_grad()
        x, y = batch(0, rank)
        loss = loss_of(pair.ddp(x), y)
        loss.backward()
        return loss

    pair.optimizer.step(again)


def two_optimizers():
    pair = Pair()
    pair.backward(0)
    for part in (pair.net.first, pair.net.second):
        torch.optim.SGD(part.parameters(), 0.1).step()


def joined():
    with Pair().ddp.join():
        pass


def tied():
    net = Small()
    net.twin = nn.Linear(12, 16).double()
    net.twin.weight.data = net.first.weight.data
    DistributedDataParallel(net)


def divided():
    from torch.distributed.fsdp import fully_shard

    fully_shard(Net())


CASES = {
    "plain": train,
    "no_sync": lambda: train(3, "last"),
    "the attribute": lambda: train(3, "attribute"),
    "several passes": lambda: train(3),
    "bucket views": lambda: train(find_unused_parameters=True, gradient_as_bucket_view=True),
    "a norm": lambda: train(clip=clipped),
    "the largest": lambda: train(clip=clipped_to_largest),
    "values": lambda: train(clip=lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.01)),
    "overflows": overflows,
    "overflows, unscaled": lambda: overflows(unscale=True),
    "overflows, fused": lambda: overflows(fused=True),
    "two optimizers and modules": two_modules,
    "one optimizer of two modules": lambda: two_modules(together=True),
    "of no library": of_no_library,
    "skipped, clipped": lambda: skipped(clip=clipped),
    "an empty parameter": lambda: train(make=WithEmpty),
    "kept and clipped": kept_and_clipped,
    "a GAN": lambda: adversaries(freeze=False),
    "a GAN that freezes": lambda: adversaries(freeze=True),
    "a penalty": lambda: alike_after(penalty),
    "features": lambda: alike_after(with_features),
    "data": lambda: alike_after(plain_loss, Small(set_data=True)),
    "bfloat16": lambda: alike_after(plain_loss, Small(dtypes=(torch.bfloat16, torch.bfloat16))),
    "two types": lambda: alike_after(plain_loss, Small(dtypes=(torch.bfloat16, torch.float32))),
    "careless": lambda: of_no_library(careless=True),
    "sparse": lambda: DistributedDataParallel(nn.Embedding(5, 3, sparse=True)),
    "hooked": lambda: Pair().ddp.register_comm_hook(None, lambda state, bucket: None),
    **{each.__name__: each for each in (closure, compiled, checkpointed, rounded, gradient_between, buffers)},
    **{each.__name__: each for each in (synchronized, in_parallel, thawed, grown, changed_gradient, second_pass)},
    **{each.__name__: each for each in (copied, kept_gradients, beside_others, caught, wrapped_again)},
    **{each.__name__: each for each in (tied, late, collective, unreached, skipped, dropped, saved)},
    **{each.__name__: each for each in (several_calls, two_optimizers, shared, joined, divided)},
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    for case in sys.argv[1].split("; "):
        CASES[case]()
        if rank == 0:
            print(f"{case}: all is well", flush=True)
