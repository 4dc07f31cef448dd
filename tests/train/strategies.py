"""The strategies of the contract in test_train_strategies.py: each of the catalogue by default, and rows of strategies
and variants that need more."""

from dataclasses import dataclass, field

from small_runs import BATCH_NORM_NET, DROPOUT_NET, LAYERWISE

from ringtrain.exchange import catalogue
from ringtrain.ops.catalogue import make_ops
from ringtrain.transport.loopback import Loopback
from tests.fakes.strategies import settings_of

# Two fully connected layers after the convolution, with columns that no number of ranks divides. Between them: a bias
# that learns twice as fast, a ReLU that is folded and one that is not, dropout.
FLAT, LAST = '  { name = "flat", kind = "Flatten" },\n', '  { name = "fc", kind = "Linear", units = 10 },\n'
BETWEEN = """  { name = "fc1", kind = "Linear", units = 21, bias = { value = 0.1, lr = 2, decay = 0 } },
  { name = "relu2", kind = "ReLU" },
  { name = "drop1", kind = "Dropout", rate = 0.4 },
  { name = "relu3", kind = "ReLU" },
"""
# Three fully connected layers, with random numbers by example and (in the ghost net) statistics by ghost batch between.
FIRST_TWO = """  { name = "fc1", kind = "Linear", units = 24 },
  { name = "relu2", kind = "ReLU" },
  { name = "drop2", kind = "Dropout", rate = 0.3 },
  { name = "fc2", kind = "Linear", units = 16 },
"""
THIRD = '  { name = "fc3", kind = "Linear", units = 10 },\n'
NORM = '  { name = "norm", kind = "BatchNorm", ghost = 8 },\n'
TWO = DROPOUT_NET.replace(FLAT, FLAT + BETWEEN)
NETS = {
    "dropout": DROPOUT_NET,
    "ghost": BATCH_NORM_NET,
    "whole batch": BATCH_NORM_NET.replace("ghost = 8", "ghost = 1000"),
    "two": TWO,
    "two, ghost": BATCH_NORM_NET.replace(FLAT, FLAT + BETWEEN),
    "all fc": TWO[: TWO.index('  { name = "conv1"')] + TWO[TWO.index(FLAT) :],  # nothing is left to the inner exchange
    "three": DROPOUT_NET.replace(LAST, FIRST_TWO + THIRD),
    "three, ghost": DROPOUT_NET.replace(LAST, FIRST_TWO + NORM + THIRD),
}

# What every strategy is asked to do, but for the options that it names in ``cannot``.
OPTIONS = {
    "adamw": {"optimizer": "adamw", "lr": 0.002, "weight_decay": 0.01},
    "rmsprop": {"optimizer": "rmsprop", "lr": 0.002, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.01},
    "nesterov, clipped": {"optimizer": "nesterov", "clip_norm": 0.5},
    "micro-batches": {"optimizer": "nesterov", "accumulate": 3, "label_smoothing": 0.1, "decay_bias_norm": False},
    "micro-batches, clipped": {"accumulate": 2, "clip_norm": 0.1},
    "lars": LAYERWISE["lars"],
    "clipped lamb": LAYERWISE["clipped lamb"],
}


@dataclass(frozen=True)
class World:
    """A number of ranks and of nodes, the net that they train, their flags besides, the option that the run on one rank
    has too, and whether the daily tests ask it."""

    ranks: int
    net: str
    flags: dict = field(default_factory=dict)
    nodes: int = 1
    option: str = ""
    daily: bool = True


def worlds(plain, ghost, **flags):
    """One to four ranks. The tenth batch has 27 examples: of four ranks with ghosts of 8, one has 3."""
    return tuple(World(ranks, net, flags) for ranks, net in ((1, plain), (2, ghost), (3, plain), (4, ghost)))


@dataclass(frozen=True)
class Strategy:
    """One row of the table.

    flags     choose it
    says      its name in the header of a run on one rank; None: it does not run there, or has no name of its own
    exact     as in the header
    like      flags of the run on one rank that has the same weights; None: it only has to learn
    nets      a plain one, and one with ghost batch norm
    alone     the net of the run on one rank, where it is another one
    worlds    in which it is compared with that run
    usual     number of ranks in the other questions
    least     number of ranks that it needs
    lockstep  whether ranks wait for one another: else turns decide the result, and tests of its own ask it
    cannot    names of OPTIONS
    learns    the share of the first loss to which it comes within 80 iterations
    near      relative difference of the loss when it goes on at another number of ranks
    keeps     slots of its optimizer, where all-reduce refuses them
    devices   flags besides, with which it trains on devices
    files     whether a run in a folder is stopped and goes on
    stops     whether all ranks are asked to stop when one is told
    victim    the rank that is told to stop
    """

    flags: dict
    says: str | None
    exact: bool = True
    like: dict | None = field(default_factory=dict)
    nets: tuple[str, str] = ("dropout", "ghost")
    alone: str | None = None
    worlds: tuple[World, ...] = worlds("dropout", "ghost", bucket_bytes=2000)
    usual: int = 3
    least: int = 1
    lockstep: bool = True
    cannot: tuple[str, ...] = ()
    learns: float | None = None
    near: float = 0.3
    keeps: str | None = None
    devices: tuple[dict, ...] = ({},)
    files: bool = True
    stops: bool = True
    victim: int = 2


def averaging(says, flags, **more):
    """Averaging now and then."""
    options = {"sync": "averaging", "average_every": 4, **flags}
    says = f"averaging every 4, momentum: {says} (ring)"
    more = {"learns": 0.15, "devices": ({"average_every": 2},), "files": False, "stops": False, **more}
    return Strategy(options, says, exact=False, like=None, **more)


def compressed(says, flags, **more):
    """Factors and elements go on alike under any optimizer: one is asked."""
    options = {"exact": False, "like": None, "learns": 1 / 3, "cannot": ("adamw", "rmsprop"), "stops": False, **more}
    return Strategy(flags, f"{says}, error feedback (ring)", **options)


def apart(says, flags, **more):
    """Ranks that do not wait for one another."""
    return Strategy({"algorithm": "auto", **flags}, says, exact=False, like=None, lockstep=False, **more)


def by_default(name: str, strategy: catalogue.Strategy) -> Strategy:
    """The row of a strategy without flags of its own: compared with one rank if it is exact, else it has to learn."""
    settings = settings_of(Loopback(), make_ops("reference", "float64"), sync=name)
    facts = strategy.make(settings).facts
    flags = {"sync": name} if facts.all_reduces else {"sync": name, "algorithm": "auto"}
    says = " ".join(filter(None, [facts.name, facts.header, "(ring)" if facts.all_reduces else ""]))
    kind = {"like": {}} if facts.exact else {"like": None, "learns": 0.5}
    return Strategy(flags, says, exact=facts.exact, **kind)


TOP_K = {"compress": "top-k", "compress_ratio": 0.05}
POWER = {"compress": "powersgd", "compress_rank": 2}
SPARSELOCO = {**TOP_K, "compress_ratio": 0.2, "compress_chunk": 64, "compress_bits": 2, "residual_decay": 0.95}
DELAYED = {"sync": "delayed"}
OUTER = {"outer_momentum": 0.5, "outer_lr": 0.7}
LATER = {"average_every": 8, "average_from": 1000}
SERVER = {"sync": "server", "algorithm": "auto"}
MASTER = {"sync": "master", "algorithm": "auto"}
THREE_FC = {"fc_ranks": 3}

STRATEGIES = {name: by_default(name, strategy) for name, strategy in catalogue.STRATEGIES.items()} | {
    "allreduce": Strategy(
        {},
        "allreduce (ring)",
        worlds=(
            *worlds("dropout", "ghost", overlap="forward", bucket_bytes=2000),
            World(3, "ghost", {"overlap": "none"}),
        ),
        files=False,
        devices=(
            {"overlap": "none"},
            {"clip_norm": 0.5},
            {"overlap": "forward"},
            {"overlap": "forward", "accumulate": 3},
            {"overlap": "forward", "clip_norm": 0.5},
        ),
    ),
    "sharded": Strategy(
        {"sync": "sharded"},
        "sharded (ring)",
        worlds=(
            *worlds("dropout", "ghost", bucket_bytes=2000),
            World(3, "ghost", {"overlap": "forward", "bucket_bytes": 2000}),
            World(3, "dropout", {"overlap": "none"}),
            World(2, "ghost", {"bucket_bytes": 2000}, option="lars"),
            World(4, "ghost", {"bucket_bytes": 2000}, option="clipped lamb"),
        ),
        devices=(
            {"clip_norm": 0.5},
            LAYERWISE["clipped lamb"],
            {"overlap": "forward", "algorithm": "butterfly"},
            {"overlap": "forward", "clip_norm": 0.5},
        ),
    ),
    # The mean of updates is the update of the mean only where it is linear.
    "averaging each iteration": Strategy(
        {"sync": "averaging", "average_every": 1},
        "averaging every iteration, momentum: average (ring)",
        worlds=(
            *worlds("dropout", "ghost", bucket_bytes=2000),
            World(3, "ghost", {**LATER, "overlap": "forward"}),
            World(3, "dropout", {**LATER, "overlap": "none"}),
        ),
        cannot=("adamw", "rmsprop", "nesterov, clipped", "micro-batches, clipped", "lars", "clipped lamb"),
        devices=(),
        files=False,
        stops=False,
    ),
    "averaging": averaging("average", {}, devices=({"average_every": 2, "average_from": 2, "clip_norm": 0.5},)),
    "averaging, momentum kept": averaging("keep", {"average_momentum": "keep"}),
    "averaging, an outer step": averaging(
        "average, outer momentum 0.5, rate 0.7", OUTER, keeps="momentum, outer_momentum, period_begin, step", files=True
    ),
    "averaging, sparse changes": averaging(
        "average, changes with top-k 20 %, error feedback",
        {"compress": "top-k", "compress_ratio": 0.2},
        keeps="momentum, outer_momentum, period_begin, residual, step",
    ),
    "averaging, streaming": averaging(
        "keep, 2 fragments, sums 2 iterations late, mixing 0.25, outer momentum 0.5, rate 0.7",
        {"fragments": 2, "average_delay": 2, "mixing": 0.25, "average_momentum": "keep", **OUTER},
        keeps="momentum, outer_momentum, period_begin, step",
        files=True,
        devices=({"average_every": 3},),
    ),
    "averaging, a centre": averaging(
        "average, a centre with rate 0.2", {"centre_rate": 0.2}, keeps="momentum, outer_momentum, period_begin, step"
    ),
    "averaging, SparseLoCo": averaging(
        "keep, outer momentum 0, rate 0.7, changes with top-k 20 % of 64 elements in 2 bits, error feedback times 0.95",
        {**SPARSELOCO, "average_momentum": "keep", "outer_lr": 0.7},
        keeps="momentum, outer_momentum, period_begin, residual, step",
    ),
    "delayed": Strategy(
        DELAYED,
        "delayed by one iteration (ring)",
        exact=False,
        like=DELAYED,
        keeps="momentum, pending, step",
        devices=({}, {"clip_norm": 0.5}),
    ),
    "gossip": Strategy(
        {"sync": "gossip"},
        "gossip up to 8 iterations apart (ring)",
        exact=False,
        like=None,
        learns=0.2,
        devices=({}, {"clip_norm": 0.5}, {"gossip_graph": "ring", "gossip_every": 2}),
    ),
    "gossip, an outer step": Strategy(
        {"sync": "gossip", "gossip_graph": "exponential", "gossip_every": 2, **OUTER},
        "gossip graph exponential, every 2, outer momentum 0.5, rate 0.7, up to 8 iterations apart (ring)",
        exact=False,
        like=None,
        learns=0.2,
        stops=False,
    ),
    "top-k": compressed(
        "allreduce with top-k 5 %",
        TOP_K,
        keeps="momentum, residual, step",
        devices=({"compress_from": 2, "compress_ratio": 0.2},),
    ),
    "powersgd": compressed(
        "allreduce with PowerSGD of rank 2",
        POWER,
        near=1e-9,
        keeps="basis, momentum, residual, step",
        devices=({"compress_rank": 1}, {"clip_norm": 0.5}),
    ),
    "4 bits": compressed(
        "allreduce with 4 bits", {"compress": "quantise", "compress_bits": 4}, keeps="momentum, residual, step"
    ),
    "delayed sign": compressed(
        "delayed by one iteration, with sign",
        {**DELAYED, "compress": "sign"},
        keeps="momentum, pending, residual, step",
        devices=({"compress_from": 2},),
    ),
    "delayed top-k": compressed(
        "delayed by one iteration, with top-k 5 %", {**DELAYED, **TOP_K}, keeps="momentum, pending, residual, step"
    ),
    "delayed powersgd": compressed(
        "delayed by one iteration, with PowerSGD of rank 2",
        {**DELAYED, **POWER},
        keeps="basis, momentum, pending, residual, step",
        devices=({"clip_norm": 0.5},),
    ),
    "master": Strategy(
        {"sync": "master", "algorithm": "star"}, "master on rank 0", devices=({"accumulate": 2}, {"clip_norm": 0.5})
    ),
    "server": Strategy(
        SERVER,
        "server on rank 0",
        worlds=(
            World(1, "dropout"),
            World(2, "ghost", {"servers": 2, "overlap": "forward", "bucket_bytes": 500}),
            World(3, "dropout", {"servers": 2}),
            World(4, "ghost", {"servers": 1, "overlap": "none"}),
            World(4, "dropout", {"servers": 2, "overlap": "forward", "bucket_bytes": 500}, nodes=2),
            World(2, "dropout", {"servers": 1, "dedicated": True}),
            World(4, "dropout", {"servers": 2, "dedicated": True, "overlap": "forward", "bucket_bytes": 500}),
            World(5, "dropout", {"servers": 2, "dedicated": True, "overlap": "none"}),
            World(3, "dropout", {"servers": 2, "overlap": "forward", "bucket_bytes": 500}, option="adamw"),
            World(3, "ghost", {"servers": 2, "overlap": "forward"}, option="clipped lamb"),
            World(3, "dropout", {"servers": 2, "overlap": "forward"}, option="micro-batches, clipped"),
        ),
        devices=(
            {"servers": 2, "overlap": "forward"},
            {"dedicated": True, "overlap": "forward"},
            {"servers": 2, "clip_norm": 0.5},
        ),
    ),
    "dedicated server": apart(None, {**SERVER, "dedicated": True}, victim=0),  # which serves
    "stale server": apart("server on rank 0, staleness 2", {**SERVER, "staleness": 2}),
    "asynchronous server": apart("server on rank 0, asynchronous", {**SERVER, "asynchronous": True}),
    "asynchronous averaging": apart(
        "averaging on rank 0, asynchronous, every 8", {"sync": "averaging", "asynchronous": True}
    ),
    "averaging by a quorum": apart(
        "averaging on rank 0, quorum 1 of 1, outer momentum 0.5, rate 0.7, every 3",
        {"sync": "averaging", "average_every": 3, "quorum": 1, **OUTER},
        keeps="momentum, outer_momentum, step",
    ),
    "hybrid": Strategy(
        {"fc": "hybrid"},
        "allreduce with fc hybrid (ring)",
        nets=("two", "two, ghost"),
        worlds=(
            *worlds("two", "two, ghost"),
            World(3, "all fc"),
            World(2, "dropout"),
            World(3, "two", {"bucket_bytes": 500}, option="clipped lamb"),
            World(4, "two, ghost", {"overlap": "forward"}, option="nesterov, clipped"),
            World(4, "two", nodes=2, option="micro-batches, clipped"),
            *(World(5, "two", {"overlap": "none"}, option=option, daily=False) for option in OPTIONS),
        ),
        devices=(
            {"clip_norm": 0.5},
            {"optimizer": "lars", "accumulate": 2},
            {"overlap": "forward", "algorithm": "sliced"},
        ),
    ),
    "pipeline": Strategy(
        {"fc": "pipeline", "fc_ranks": 2, "algorithm": "auto"},
        None,
        nets=("three", "three, ghost"),
        usual=4,
        least=3,
        # Of "dropout" and "ghost" two and three ranks divide columns; of "two", the last two of three.
        worlds=(
            World(2, "three", {"fc_ranks": 1, "bucket_bytes": 500}),
            World(4, "three, ghost", {"fc_ranks": 1, "accumulate": 4, "overlap": "forward"}),
            World(4, "dropout", {"accumulate": 3, "algorithm": "recursive-doubling"}),
            World(5, "two", {**THREE_FC, "accumulate": 2, "overlap": "forward"}),
            World(5, "three", {**THREE_FC, "overlap": "none"}),
            World(5, "dropout", {"fc_ranks": 1}, nodes=2),
            World(4, "ghost", {"bucket_bytes": 500}, option="clipped lamb"),
            World(5, "two", {**THREE_FC, "bucket_bytes": 500}, option="lars"),
            World(5, "dropout", THREE_FC, option="micro-batches, clipped"),
        ),
        devices=(
            {"fc_ranks": 1, "accumulate": 2},
            {"clip_norm": 0.5, "accumulate": 2},
            {"fc_ranks": 1, "overlap": "forward"},
        ),
    ),
    "whole-batch norm": Strategy(
        {"batch_norm": "sync"},
        None,
        nets=("ghost", "ghost"),
        alone="whole batch",
        worlds=(
            *(World(ranks, "ghost") for ranks in (1, 2, 3, 4)),
            World(3, "ghost", {"sync": "sharded"}, option="nesterov, clipped"),
            World(3, "ghost", {"algorithm": "mpi"}),
            World(3, "ghost", {"fc": "hybrid"}),
        ),
        stops=False,
        cannot=("micro-batches", "micro-batches, clipped"),
        devices=({}, {"batch": 148}),  # of which the tail leaves ranks without examples
    ),
}
