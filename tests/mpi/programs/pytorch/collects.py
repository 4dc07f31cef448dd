"""Every collective of PyTorch, waited for and asynchronous, on the world and on groups; wrong calls are refused."""

import contextlib
import itertools
import math

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from ringtrain.errors import UsageError
from tests.says import says

dist.init_process_group(backend="gloo", init_method="tcp://127.0.0.1:29501")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
EVERY = range(SIZE)
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]
SMALL = [torch.uint8, torch.int8, torch.int16]
COMPLEX = torch.complex64
ALL_REDUCES = (dist.all_reduce, lambda *arguments: dist.all_reduce(*arguments, async_op=True).wait())


def equal(got, wanted):
    assert got.dtype == wanted.dtype and torch.equal(got, wanted), (got, wanted)


def call(function, *arguments, **named):
    """Make the call in both ways, each of which must give the same."""
    function(*arguments, **named)
    again = function(*arguments, **named, async_op=True)
    again.wait()
    assert again.is_completed() and again.exception() is None


def refused(text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except UsageError as error:
        assert str(error) == text, str(error)
    else:
        raise AssertionError(f"wanted: {text}")


def reductions():
    ops = [(ReduceOp.SUM, sum), (ReduceOp.MAX, max), (ReduceOp.MIN, min)]
    for dtype, (op, one), start in itertools.product([*TYPES, *SMALL], ops, ALL_REDUCES):
        tensor = torch.arange(5).to(dtype) + RANK
        start(tensor, op)
        equal(tensor, torch.tensor([one([i + rank for rank in EVERY]) for i in range(5)]).to(dtype))
    product = torch.full((2, 3), RANK + 1)
    dist.all_reduce(product, ReduceOp.PRODUCT)
    equal(product, torch.full((2, 3), math.factorial(SIZE)))
    mean = torch.full((3,), float(RANK))
    dist.all_reduce(mean, ReduceOp.AVG)
    equal(mean, torch.full((3,), sum(EVERY) / SIZE))
    for dtype in (torch.int64, torch.int32, torch.int16):  # Lightning counts examples so; cut towards zero, as by NCCL
        counts = torch.tensor([7 + RANK, -7 - RANK, 3]).to(dtype)
        dist.all_reduce(counts, ReduceOp.AVG)
        mean = (7 * SIZE + sum(EVERY)) // SIZE
        equal(counts, torch.tensor([mean, -mean, 3]).to(dtype))
    number = torch.tensor(RANK + 1.0)
    dist.all_reduce(number)
    equal(number, torch.tensor(sum(EVERY) + SIZE + 0.0))
    strided = torch.zeros(4, 6) + RANK
    dist.all_reduce(strided[:, ::2])
    equal(strided[0], torch.tensor([sum(EVERY), RANK] * 3).float())
    whole = torch.ones(3000)
    part = whole[:2000]
    for _ in range(3):  # the same tensor again takes a short way
        whole.fill_(1)
        dist.all_reduce(part)
    whole.fill_(1)
    part.resize_(10)
    dist.all_reduce(part)
    assert whole[:10].eq(SIZE).all() and whole[10:].eq(1).all()
    turning = torch.complex(torch.full((2,), float(RANK)), torch.ones(2))
    dist.all_reduce(turning)
    equal(turning, torch.complex(torch.full((2,), float(sum(EVERY))), torch.full((2,), float(SIZE))))
    flags = torch.tensor([RANK == 0, True])
    dist.all_reduce(flags, ReduceOp.MIN)
    equal(flags, torch.tensor([SIZE == 1, True]))
    folded = {ReduceOp.PRODUCT: 5**SIZE, ReduceOp.BAND: 5, ReduceOp.BOR: 5, ReduceOp.BXOR: 5 * (SIZE % 2)}
    for op, wanted in folded.items():
        bits = torch.tensor([5, 1])
        dist.all_reduce(bits, op)
        assert bits[0] == wanted, (op, bits)
    root = torch.full((3,), float(RANK))
    dist.reduce(root, SIZE - 1)
    equal(root, torch.full((3,), float(sum(EVERY) if RANK == SIZE - 1 else RANK)))
    for dtype in (torch.float32, torch.uint8, COMPLEX):
        part = torch.empty(2, 3, dtype=dtype)
        rows = torch.arange(6 * SIZE).reshape(2 * SIZE, 3).to(dtype)
        call(dist.reduce_scatter_tensor, part, rows)
        equal(part, rows[2 * RANK : 2 * RANK + 2] * SIZE)
    part = torch.empty(3)
    dist.reduce_scatter(part, [torch.full((3,), float(rank)) for rank in EVERY], op=ReduceOp.AVG)
    equal(part, torch.full((3,), float(RANK)))
    count = torch.empty(1, dtype=torch.int64)
    dist.reduce_scatter(count, [torch.tensor([7 + RANK]) for _ in EVERY], op=ReduceOp.AVG)
    equal(count, torch.tensor([(7 * SIZE + sum(EVERY)) // SIZE]))
    dist.reduce_scatter(part, [torch.full((3,), 2.0) for rank in EVERY], op=ReduceOp.PRODUCT)
    equal(part, torch.full((3,), 2.0**SIZE))


def sparse():
    """Rank r has rows 0 and r, and rank 0 none: all have a row more than the last."""

    def share(rank):
        rows = torch.tensor([[0, rank, rank]]) if rank else torch.empty(1, 0, dtype=torch.long)
        values = torch.arange(6.0).reshape(3, 2) if rank else torch.empty(0, 2)
        return torch.sparse_coo_tensor(rows, values, (SIZE, 2))

    dense = sum(share(rank).to_dense() for rank in EVERY)
    for (op, wanted), start in itertools.product(((ReduceOp.SUM, dense), (ReduceOp.AVG, dense / SIZE)), ALL_REDUCES):
        tensor = share(RANK)
        start(tensor, op)
        equal(tensor.to_dense(), wanted)
    net = DistributedDataParallel(torch.nn.EmbeddingBag(50, 4, sparse=True))
    net(torch.tensor([[RANK, 7], [7, 9]])).sum().backward()
    wanted = torch.zeros(50, 4)
    wanted[7], wanted[9] = 1, 0.5
    wanted[:SIZE] += 0.5 / SIZE
    assert torch.allclose(net.module.weight.grad.to_dense(), wanted)


def profiled():
    before = dist.group.WORLD._get_sequence_number_for_group()
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), async_op=True).wait()
        dist.barrier()
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("ringtrain")}
    assert counts == {"ringtrain:all_reduce": 2, "ringtrain:barrier": 1}, counts
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 3
    options = dist.group.WORLD._get_backend(torch.device("cpu")).options
    assert options.backend == "ringtrain" and options._timeout == dist.constants.default_pg_timeout


def moves():
    for dtype in (*TYPES, *SMALL, torch.bool, COMPLEX, torch.float8_e4m3fn):
        flags = torch.full((3, 2), RANK == SIZE - 1).to(dtype).t()
        call(dist.broadcast, flags, SIZE - 1)
        assert flags.to(torch.float32).real.all()
        rows = torch.empty(3 * SIZE, dtype=dtype)
        call(dist.all_gather_into_tensor, rows, torch.full((3,), float(RANK)).to(dtype))
        equal(rows.to(torch.complex64), torch.arange(SIZE).repeat_interleave(3).to(torch.float32).to(dtype).to(COMPLEX))
    whole = torch.full((SIZE * 4,), -1.0)
    whole[4 * RANK : 4 * RANK + 4] = RANK
    dist.all_gather_into_tensor(whole, whole[4 * RANK : 4 * RANK + 4])  # as FSDP does
    equal(whole, torch.arange(SIZE).repeat_interleave(4).float())
    every = [torch.empty(3, 2).t() for _ in EVERY]
    call(dist.all_gather, every, torch.full((2, 3), float(RANK)))
    for rank, got in enumerate(every):
        equal(got, torch.full((2, 3), float(rank)))
    last = SIZE - 1
    lists = [torch.empty(2) for _ in EVERY] if last == RANK else None
    call(dist.gather, torch.full((2,), float(RANK)), lists, dst=last)
    for rank, got in enumerate(lists or ()):
        equal(got, torch.full((2,), float(rank)))
    part = torch.empty(2)
    call(dist.scatter, part, [torch.full((2,), float(rank)) for rank in EVERY] if last == RANK else None, src=last)
    equal(part, torch.full((2,), float(RANK)))
    swapped = torch.empty(SIZE, 2)
    call(dist.all_to_all_single, swapped, torch.arange(SIZE)[:, None].repeat(1, 2) + 10.0 * RANK)
    equal(swapped, RANK + 10.0 * torch.arange(SIZE)[:, None].repeat(1, 2))
    counts = [rank + 1 for rank in EVERY]
    uneven = torch.empty(SIZE * (RANK + 1))
    numbers = torch.arange(float(sum(counts)))
    call(dist.all_to_all_single, uneven, numbers, [RANK + 1] * SIZE, counts)
    equal(uneven, numbers[sum(counts[:RANK]) :][: RANK + 1].repeat(SIZE))
    got = [torch.empty(RANK + 1) for _ in EVERY]
    call(dist.all_to_all, got, [torch.full((rank + 1,), float(RANK)) for rank in EVERY])
    for rank, each in enumerate(got):
        equal(each, torch.full((RANK + 1,), float(rank)))
    call(dist.barrier)


def nothing():
    """Tensors without elements, as the last rank's share of an uneven split."""
    none, every = torch.empty(0, 2), [torch.empty(0, 2) for _ in EVERY]
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT):
        call(dist.all_reduce, none, op)
        call(dist.reduce_scatter, none, every, op)
    call(dist.all_gather, every, none)
    call(dist.gather, none, every if RANK == 0 else None)
    call(dist.scatter, none, every if RANK == 0 else None)
    call(dist.broadcast, none, 0)
    call(dist.all_to_all_single, none, none)


def messages():
    if SIZE == 1:
        return
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.empty(3, 2).t()
    sent = torch.full((2, 3), float(RANK))
    pairs = [dist.P2POp(dist.irecv, got, before, tag=3), dist.P2POp(dist.isend, sent, after, tag=3)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    equal(got, torch.full((2, 3), float(before)))
    heard = set()
    for _ in range(SIZE - 1 if RANK == 0 else 0):
        number = torch.empty(1)
        sender = dist.recv(number)
        assert number.item() == sender
        heard.add(sender)
    if RANK:
        dist.send(torch.full((1,), float(RANK)), 0)
    assert RANK or heard == set(range(1, SIZE))


def objects():
    every = [None] * SIZE
    dist.all_gather_object(every, {"rank": RANK})
    assert every == [{"rank": rank} for rank in EVERY]
    values = ["all", {"n": SIZE}] if RANK == 0 else [None, None]
    dist.broadcast_object_list(values)
    assert values == ["all", {"n": SIZE}]
    value = [None]
    dist.scatter_object_list(value, [f"of {rank}" for rank in EVERY] if RANK == 0 else None)
    assert value == [f"of {RANK}"]


def futures_and_groups():
    works = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(5)]
    for i, work in enumerate(works):
        (value,) = work.get_future().wait()
        equal(value, torch.full((1000,), float(i * SIZE)))
    doubled = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: 2 * done.value()[0])
    equal(doubled.wait(), torch.full((2,), 2.0 * SIZE))
    again = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(reduced_again)
    others = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]  # behind it, and before its callback
    equal(again.wait(), torch.full((2,), 2.0 * SIZE**3))
    for work in others:
        work.wait()
    failing = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        raise AssertionError(failing.then(lambda done: done.value()).wait())
    grown = torch.ones(2)
    dist.all_reduce(grown)
    dist.broadcast(grown, 0)
    grown.resize_(1000)
    odd = dist.new_group([rank for rank in EVERY if rank != 0]) if SIZE > 1 else None
    if RANK:
        each = torch.ones(2)
        dist.all_reduce(each, group=odd)
        equal(each, torch.full((2,), SIZE - 1.0))
        dist.broadcast(each, SIZE - 1, group=odd)
        assert dist.get_backend(odd) == "ringtrain" and dist.get_rank(odd) == RANK - 1
    world = dist.group.WORLD
    equal(functional.all_reduce(torch.ones(2), "sum", world) + 0, torch.full((2,), float(SIZE)))
    equal(functional.all_gather_tensor(torch.full((1,), float(RANK)), 0, world) + 0, torch.arange(float(SIZE)))
    equal(functional.reduce_scatter_tensor(torch.ones(SIZE), "avg", 0, world) + 0, torch.ones(1))
    coalesced = functional.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", world)
    for each in coalesced:
        equal(each + 0, torch.full(each.shape, float(SIZE)))


def reduced_again(done):
    """A callback that makes collectives, of which one has a callback that does too."""

    def twice(inner):
        (value,) = inner.value()
        dist.all_reduce(value)
        return 2 * value

    return dist.all_reduce(done.value()[0], async_op=True).get_future().then(twice).wait()


def refusals():
    refused(says("multiply", "ReduceOp"), dist.all_reduce, torch.ones(2), dist._make_nccl_premul_sum(2.0))
    refused(says("AVG", "bool"), dist.all_reduce, torch.ones(2, dtype=torch.bool), ReduceOp.AVG)
    refused(says("BOR", "float32"), dist.all_reduce, torch.ones(2), ReduceOp.BOR)
    sparse = torch.eye(2).to_sparse()
    refused(says(torch.sparse_coo), dist.broadcast, sparse, 0)
    refused(says("MAX"), dist.all_reduce, sparse, ReduceOp.MAX)
    refused(says(RANK, SIZE - 1), dist.recv, torch.ones(1), RANK)
    wanted = says("input_list", SIZE + 1, SIZE)
    refused(wanted, dist.reduce_scatter, torch.empty(1), [torch.ones(1)] * (SIZE + 1))


for part in (reductions, sparse, profiled, moves, nothing, messages, objects, futures_and_groups, refusals):
    part()
    dist.barrier()
dist.destroy_process_group()
dist.init_process_group()  # and again
total = torch.ones(1)
dist.all_reduce(total)
if RANK == 0:
    print(f"all is well on {int(total.item())} ranks")
