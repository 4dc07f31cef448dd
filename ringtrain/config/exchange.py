"""The options of an exchange: all that a strategy is told by its user. It knows no training."""

from dataclasses import dataclass
from functools import partial

from ringtrain.config.option import option
from ringtrain.config.presets import strategy_of

strategy_option = partial(option, section="Strategy")
placement_option = partial(option, section="Model parallel")
message_option = partial(option, section="Exchange of gradients")
overlap_option = partial(option, section="Overlap with computing")
reliability_option = partial(option, section="Reliability")
LOSSY = ("top-k", "powersgd", "quantise", "sign")  # --compress


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """How ranks exchange gradients or weights."""

    sync: str = strategy_option("allreduce", "How ranks stay in step: STRATEGIES.")
    average_every: int = strategy_option(8, "With averaging: iterations between averages.", low=1)
    average_momentum: str = strategy_option(
        "average",
        "With averaging: the optimizer's state after an average: keep, each rank's own; average, the mean.",
        choices=("keep", "average"),
    )
    average_from: int = strategy_option(
        0, "With averaging: iterations of all-reduce before it begins (post-local SGD).", low=0
    )
    outer_momentum: float = strategy_option(
        0.0, "With averaging: Nesterov momentum of the outer step (DiLoCo); with gossip: NoLoCo's.", low=0, below=1
    )
    outer_lr: float = strategy_option(
        1.0, "With averaging and gossip: step from the last average towards this one, as a factor.", above=0
    )
    fragments: int = strategy_option(
        1, "With averaging: parts of the weights that take turns, one each period.", low=1, planned=False
    )
    average_delay: int = strategy_option(
        0, "With averaging: iterations for which changes travel while ranks go on.", low=0, planned=False
    )
    mixing: float = strategy_option(
        0.0, "With averaging: a rank's share of its own weights, when new ones arrive.", low=0, below=1, planned=False
    )
    centre_rate: float = strategy_option(
        0.0, "With averaging: ranks' step to a centre, which moves to them (EASGD).", low=0, high=1, planned=False
    )
    servers: int = strategy_option(1, "With server: ranks that own spans of the weights, from rank 0 on.", low=1)
    dedicated: bool = strategy_option(False, "With server: servers only serve, and the other ranks train.")
    staleness: int = strategy_option(
        0, "With server: iterations that a rank may be ahead of the slowest; 0: exact sums over all ranks.", low=0
    )
    asynchronous: bool = strategy_option(
        False,
        "With server and averaging: no rank waits for another, and each result is added as it arrives; in `train` idle "
        "ranks fetch parts of batches.",
    )
    quorum: int | None = strategy_option(
        None,
        "With averaging: servers make an average, and the outer step, of the first K ranks to come, and hold no other "
        "(Decoupled DiLoCo); includes --asynchronous.",
        low=1,
        planned=False,
    )
    grace_s: float = strategy_option(
        0.0, "With --quorum: seconds to wait for further ranks.", low=0, planned=False, used_by=("quorum", None)
    )
    gossip_max_lag: int = strategy_option(
        8, "With gossip: most iterations between the fastest and the slowest rank.", low=0
    )
    gossip_graph: str = strategy_option(
        "pairs",
        "With gossip: whose weights a rank takes: pairs, of one partner; ring, of both neighbours; exponential, of the "
        "rank 1, 2, 4 ... before it.",
        choices=("pairs", "ring", "exponential"),
    )
    gossip_every: int = strategy_option(1, "With gossip: iterations between exchanges.", low=1)
    plugin_option: tuple[str, ...] = strategy_option(
        (), "An option of a plug-in's strategy: NAME=VALUE. May be repeated.", planned=False
    )

    fc: str = placement_option(
        "data",
        "With --sync allreduce: placement of fully connected layers: data, on every rank; hybrid, columns divided "
        "among ranks; pipeline, on dedicated ranks.",
        choices=("data", "hybrid", "pipeline"),
    )
    fc_ranks: int = placement_option(
        1, "With --fc pipeline: ranks that hold fully connected layers.", low=1, used_by=("fc", ("pipeline",))
    )

    algorithm: str = message_option(
        "auto",
        "All-reduce: ring; auto, by size and the figures of `ringtrain tune`; mpi, the MPI's own; mapped or routed, in "
        "shared memory of a node; or another schedule: tree, double-tree, butterfly, circulant, recursive-doubling, "
        "star, sliced, hierarchical or hierarchical:INNER:OUTER. With "
        "--reproducible: auto, mapped or canonical.",
        short="a",
    )
    tuning: str | None = message_option(
        None,
        "Tuning file for `auto`, measured on this machine. [RINGTRAIN_TUNING, or ringtrain/tuning.json under ~/.config "
        "if it exists and fits]",
        once=True,
        used_by=("algorithm", ("auto",)),
    )
    segment_bytes: int | None = message_option(
        None,
        "Bytes of a message: adding one overlaps receiving the next. [256 KiB within a node, 60,000 between nodes]",
        low=1,
        size=True,
    )
    wire: str = message_option(
        "none",
        "Type of gradients, or averaging's changes, in messages, which halves the bytes; sums are float32.",
        choices=("none", "float16", "bfloat16"),
    )
    compress: str = message_option(
        "none",
        "Compress gradients, or averaging's changes, with error feedback: top-k, each parameter's largest elements; "
        "powersgd, two thin factors of each matrix; quantise, few bits an element; sign, one bit.",
        choices=("none", *LOSSY),
    )
    compress_ratio: float = message_option(
        0.01, "With top-k: the share of elements that is sent.", above=0, high=1, used_by=("compress", ("top-k",))
    )
    compress_chunk: int = message_option(
        0,
        "With top-k: elements of which it takes the largest, a power of 2, so that indices are short; 0: a parameter.",
        low=0,
        size=True,
        used_by=("compress", ("top-k",)),
    )
    compress_bits: int | None = message_option(
        None,
        "With quantise and top-k: bits of a value, 2 to 8. [8; with top-k whole values]",
        low=2,
        high=8,
        used_by=("compress", ("quantise", "top-k")),
    )
    compress_rank: int = message_option(
        4, "With powersgd: columns of the factors.", low=1, used_by=("compress", ("powersgd",))
    )
    compress_from: int = message_option(
        0, "With --compress: iterations of whole gradients before it begins.", low=0, used_by=("compress", LOSSY)
    )
    residual_decay: float = message_option(
        1.0, "With --compress: factor of the residual.", above=0, high=1, used_by=("compress", LOSSY)
    )
    reproducible: bool = message_option(
        False,
        "Bitwise the same weights at any number of ranks up to --shards: the batch is cut into --shards parts, whose "
        "gradients are added in one fixed order.",
        fixed=True,
    )
    shards: int = message_option(
        8,
        "With --reproducible: parts of the batch, divided among ranks; the largest number of ranks.",
        low=1,
        high=65536,
        fixed=True,
        used_by=("reproducible", (True,)),
    )

    overlap: str = overlap_option(
        "backward",
        "When gradients travel: none, after backward; backward, while it runs; forward, weights wait until forward "
        "needs them too.",
        choices=("none", "backward", "forward"),
    )
    bucket_bytes: int = overlap_option(
        4 << 20, "Approximate gradient bytes of a bucket, which are exchanged together. [4M]", low=1, size=True
    )

    elastic: str | None = reliability_option(
        None,
        "Survive the death of ranks, under `mpirun --with-ft ulfm`: shrink, the others continue (the meaning of a bare "
        "--elastic); replace, new ranks take the places of the dead.",
        choices=("shrink", "replace"),
        bare="shrink",
        once=True,
    )
    check_collectives: bool = reliability_option(
        True, "Check every collective, and name ranks that differ or are missing."
    )
    deadline_s: float = reliability_option(
        300.0, "Seconds without progress of any rank until the run ends as stalled.", above=0
    )
    check_replicas: int | None = reliability_option(
        None,
        "Iterations between bitwise checks that all ranks hold the same weights and state, in addition to those at "
        "each evaluation, checkpoint and epoch's end; 0: only at the start and the end. [no others]",
        low=0,
    )

    def __post_init__(self) -> None:
        if self.quorum is not None:  # its ranks have servers, and take parts of batches
            object.__setattr__(self, "asynchronous", True)

    @property
    def strategy(self) -> str:
        """The name of the strategy: ``sync``, or that of the preset."""
        return strategy_of(self.sync)
