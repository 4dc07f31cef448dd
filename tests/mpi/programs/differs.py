"""Calls that ranks have all made before, of which rank 1 now makes another one: refused on all ranks, nothing is
written outside an array, the communicator closes, and the next one works."""

import sys

import numpy as np

from ringtrain import Communicator
from ringtrain.errors import StalledError, TransportError, UsageError

GAP, CANARY = 70_000, 7  # elements around an array: more than any array here is longer than another
SHAPES = [((2, 3), (3, 2)), ((6,), (6, 1)), ((30_000,), (20_000,)), ((60_000,), (100_000,))]
STALLED_S = 0.2
SHORT = ("streamed", "all_", "reduce", "gather", "prepared")
KEPT = {}  # arrays and prepared reductions, by shape


class Arrays:
    """Arrays in the middle of longer ones."""

    def __init__(self):
        self.arrays = []

    def __call__(self, *shape, fill=1):
        count = int(np.prod(shape))
        whole = np.full(count + 2 * GAP, CANARY, np.float32)
        self.arrays.append((whole, count))
        part = whole[GAP : GAP + count].reshape(shape)
        part[...] = fill
        return part

    def whole(self):
        return all((w[:GAP] == CANARY).all() and (w[GAP + n :] == CANARY).all() for w, n in self.arrays)


def rows(c, shape):
    return c.size, *shape


def all_reduce(**options):
    def call(c, new, shape):
        array = new(*shape)
        c.allreduce(array, out=array, **options)

    return call


def again(c, new, shape):
    for _ in range(3):
        array = KEPT.setdefault(shape, np.ones(shape, np.float32))
        c.allreduce(array, out=array)


def prepared(algorithm):
    def call(c, new, shape):
        if shape not in KEPT:
            KEPT[shape] = c.prepare(new(*shape), algorithm=algorithm)
        KEPT[shape].start()
        KEPT[shape].wait()

    return call


def works(call):
    """The call with async_op."""
    return lambda c, new, shape: call(c, new, shape, async_op=True).wait()


def broadcast(c, new, shape, **options):
    return c.broadcast(new(*shape), **{"algorithm": "mpi", **options})


def all_gather(c, new, shape, **options):
    return c.all_gather(new(*shape), out=new(*rows(c, shape)), **{"algorithm": "mpi", **options})


def reduce_scatter(c, new, shape, **options):
    return c.reduce_scatter(new(*rows(c, shape)), out=new(*shape), **{"algorithm": "mpi", **options})


def gather(c, new, shape):
    return c.gather(new(*shape), out=new(*rows(c, shape)) if c.rank == 0 else None)


def scatter(c, new, shape):
    return c.scatter(new(*rows(c, shape)) if c.rank == 0 else None, out=new(*shape))


def all_to_all(c, new, shape):
    return c.all_to_all(new(*rows(c, shape)), out=new(*rows(c, shape)))


def in_parts(c, new, shape):
    counts = {"send_counts": [shape[0]] * c.size, "recv_counts": [shape[0]] * c.size}
    return c.all_to_all(new(c.size * shape[0]), out=new(c.size * shape[0]), **counts)


CALLS = {
    "streamed": all_reduce(),
    "streamed mean": all_reduce(op="mean"),
    "streamed again": again,
    "mpi": all_reduce(algorithm="mpi"),
    "mpi's mean": all_reduce(op="mean", algorithm="mpi"),
    "prepared for the mpi": prepared("mpi"),
    "prepared to stream": prepared("stream"),
    "broadcast": broadcast,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "broadcast in flight": works(broadcast),
    "all_gather in flight": works(all_gather),
    "reduce_scatter in flight": works(reduce_scatter),
}
KINDS = [  # of one shape
    ("streamed", "broadcast"),
    ("broadcast", "all_gather"),
    ("mpi", "broadcast"),
    ("mpi", "prepared for the mpi"),
    ("streamed", "mpi"),
    ("gather", "scatter"),
    ("barrier", "broadcast"),
]
SCHEDULES = {  # by tags: they wait in vain for one another
    "ring": all_reduce(algorithm="ring"),
    "circulant": all_reduce(algorithm="circulant"),
    "sliced": lambda c, new, shape: reduce_scatter(c, new, shape, algorithm="sliced"),
}


def tried(name, known, differing, kinds, deadline_s=20.0):
    """One case: all make the ``known`` calls, then each its ``differing`` one. Returns what is wrong."""
    new = Arrays()
    KEPT.clear()
    c = Communicator(deadline_s=60.0, check_collectives=False)
    for call in known:
        call(c, new)
    c.set_deadline(deadline_s)
    wrong = [f"{name}: no error"]
    try:
        differing(c, new)
    except kinds:
        wrong = []
    except Exception as error:
        wrong = [f"{name}: {error!r}"]
    if not new.whole():
        wrong.append(f"{name}: written outside of an array")
    MEETING.barrier()
    c.close()
    if name.startswith(SHORT):  # a communicator takes some time to make
        return wrong
    with Communicator(deadline_s=60.0) as after:
        if after.allreduce(np.ones(3)).tolist() != [after.size] * 3:
            wrong.append(f"{name}: a wrong sum afterwards")
    return wrong


def by_rank(calls):
    """The first of two calls, of rank 1 the second."""
    return lambda c, new: calls[c.rank == 1](c, new)


def of_shapes(call, *shapes):
    return [lambda c, new, shape=shape: call(c, new, shape) for shape in shapes]


def shape_cases():
    for name, call in CALLS.items():
        for first, second in SHAPES:
            known = of_shapes(call, first, second)
            yield f"{name} of {first} and {second}", known, by_rank(known)


def kind_cases():
    every = {**CALLS, "barrier": lambda c, new, shape: c.barrier()}
    for first, second in KINDS:
        known = [lambda c, new, name=name: every[name](c, new, (3000,)) for name in (first, second)]
        yield f"{first} and {second}", known, by_rank(known)
        yield f"{first}, and {second} for the first time", known[:1], by_rank(known)


def part_cases():
    for counts in ((20_000, 30_000), (30_000, 20_000), (3, 5)):
        known = [lambda c, new, count=count: in_parts(c, new, (count,)) for count in counts]
        yield f"parts of {counts[0]} and {counts[1]}", known, by_rank(known)


def message_cases():
    """Each rank sends to the next; rank 1 expects another length."""
    for sent, expected in ((1000, 600), (30_000, 20_000), (100_000, 60_000), (60_000, 100_000)):
        for any_rank in (False, True):
            new, c = Arrays(), Communicator(deadline_s=30.0)
            wants = expected if c.rank == 1 else sent
            into, behind = new(wants, fill=0), new(1, fill=0)
            before, after = (c.rank - 1) % c.size, (c.rank + 1) % c.size
            works = [c.send(new(sent, fill=c.rank), after, async_op=True), c.send(new(1, fill=5), after, async_op=True)]
            source = None if any_rank else before
            first, second = c.recv(into, source, async_op=True), c.recv(behind, source, async_op=True)
            second.wait()  # it was called second, and gets the second message
            wrong = [] if behind[0] == 5 else ["messages out of order"]
            try:
                first.wait()
                wrong += [] if c.rank != 1 and (into == before).all() else ["a message of another length is no error"]
            except TransportError as error:
                wrong += [] if c.rank == 1 and f"{4 * sent} bytes" in str(error) else [repr(error)]
            for work in works:
                work.wait()
            c._progress._failed = None
            c.close()
            yield [f"{sent} for {expected}: {text}" for text in wrong if text] + ([] if new.whole() else ["outside"])


def main():
    cases = [tried(*case, (TransportError, UsageError)) for case in (*shape_cases(), *kind_cases(), *part_cases())]
    for name, call in SCHEDULES.items():
        known = of_shapes(call, *SHAPES[0])
        cases.append(tried(name, known, by_rank(known), StalledError, STALLED_S))
    cases += message_cases()
    wrong = [text for problems in cases for text in problems]
    for text in wrong:
        print(f"rank {MEETING.rank}: {text}", flush=True)
    MEETING.barrier()
    if MEETING.rank == 0 and not wrong:
        print(f"{len(cases)} cases are refused", flush=True)
    return bool(wrong)


MEETING = Communicator(deadline_s=60.0)
sys.exit(main())
