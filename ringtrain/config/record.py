"""The options of a run: one frozen record, from which the command line's flags are made.

Every field is a flag and a key of a TOML run file. :mod:`ringtrain.config.resolve` merges the sources.
"""

from dataclasses import MISSING, dataclass, field, fields


def option(
    default, help, *, choices=None, low=None, above=None, below=None, high=None, short=None, bare=None, epochs=False
):
    """Return a field with the properties of its flag: help text with its unit, and the accepted values; ``bare``: the
    meaning of the flag without a value; ``epochs``: whether a number of iterations may be given in epochs, as the
    text "5ep", which becomes iterations once the data are known.
    """
    rules = {"help": help, "choices": choices, "low": low, "above": above, "below": below, "high": high}
    rules |= {"short": short, "bare": bare, "epochs": epochs}
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=rules)
    return field(default=default, metadata=rules)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run. None means: not set, the model's recipe decides, or off."""

    model: str = option("digits", "Model: a name that `ringtrain models list` knows, or a TOML file.", short="m")
    data: str | None = option(None, "Data set: an HDF5 file from `ringtrain data make`. [digits: the shipped one]")
    synthetic: bool = option(False, "Train on one fixed random batch: speed without data loading.")

    batch: int = option(64, "Examples an iteration, over all ranks.", low=1, short="b")
    epochs: int | None = option(10, "Passes over the training set.", low=1)
    iterations: int | None = option(None, "Iterations, in place of epochs.", low=1)
    accumulate: int = option(
        1, "Micro-batches that an iteration is cut into on each rank, to save memory.", low=1, high=65536
    )

    optimizer: str = option("sgd", "Update rule.", choices=("sgd", "nesterov", "adamw", "lars", "lamb"))
    lr: float = option(0.01, "Learning rate.", above=0)
    base_batch: int | None = option(
        None, "Linear scaling rule: --lr is meant for this batch, and is multiplied by batch / base-batch.", low=1
    )
    lr_policy: str = option(
        "constant",
        "How the learning rate moves.",
        choices=("constant", "step", "multistep", "poly", "inv", "cosine"),
    )
    lr_steps: tuple[int | str, ...] = option(
        (), "Where `multistep` drops, in iterations or epochs: 30ep,60ep; the one period of `step`.", low=1, epochs=True
    )
    lr_gamma: float = option(0.1, "Factor of `step` and `multistep`; gamma of `inv`.", above=0)
    lr_power: float = option(1.0, "Power of `poly` and `inv`.", above=0)
    warmup: int | str = option(0, "Iterations of linear warm-up, or epochs: 5ep, 0.5ep.", low=0, epochs=True)
    momentum: float = option(0.9, "Momentum of sgd, nesterov and lars; beta1 of adamw and lamb.", low=0, below=1)
    beta2: float = option(0.999, "Second moment's decay of adamw and lamb.", low=0, below=1)
    trust: float | None = option(None, "Trust coefficient of lars. [0.001]", above=0)
    trust_limit: float | None = option(None, "Largest trust ratio of lars and lamb. [no limit]", above=0)
    momentum_correction: bool = option(
        False, "Of lars: scale what momentum has gathered by the new learning rate over the old, when that changes."
    )
    batch_norm: str = option(
        "model",
        "Statistics of batch normalisation: model, by ghost batches as the model file has them; ghost:SIZE, by ghost "
        "batches of so many examples; sync, by the whole batch, summed over ranks in every layer.",
    )
    weight_decay: float = option(
        0.0, "Weight decay: L2 in sgd, nesterov and lars, decoupled in adamw, part of the scaled step in lamb.", low=0
    )
    decay_bias_norm: bool = option(True, "Whether biases and normalisation scales decay too.")
    clip_norm: float | None = option(None, "Clip the gradient to this global L2 norm.", above=0)
    label_smoothing: float = option(0.0, "Share of the target spread over all classes.", low=0, below=1)
    augment: bool = option(True, "Random crops and flips where the model's input asks for them.")

    seed: int = option(0, "Seed of weights, order, augmentation and dropout.", low=0, high=2**63 - 1)
    dtype: str = option(
        "float32", "Type of weights and gradients; float64 is for checks.", choices=("float32", "float64")
    )
    device: str = option("cpu", "What computes: cpu; or cuda, one GPU a rank.", choices=("cpu", "cuda"))
    precision: str = option(
        "float32",
        "Of --device cuda: float32, whole; tf32, products by TF32 tensor cores; bfloat16 or float16, activations of 16 "
        "bits, and products of those. Weights, gradients and sums are float32 in all of them.",
        choices=("float32", "tf32", "bfloat16", "float16"),
    )
    loss_scale: float | None = option(
        None,
        "Of --precision float16: what the loss is multiplied by, so that small gradients are not lost. [dynamic: from "
        "65536, halved where a gradient is not finite, doubled after 2000 that are]",
        above=0,
    )
    mpi_cuda: str = option(
        "auto",
        "Of --device cuda: how device memory travels between processes: direct, the MPI is handed it; staged, through "
        "host memory; auto, direct where a trial shows that it works and is faster.",
        choices=("auto", "direct", "staged"),
    )
    ops: str = option("cpu", "Kernels of --device cpu: `cpu`, compiled, or `reference`, plain NumPy.")
    threads: int | None = option(None, "BLAS threads a rank. [OMP_NUM_THREADS if that is set, or 1]", low=1)

    sync: str = option(
        "allreduce",
        "How ranks stay in step: allreduce, sum gradients and update everywhere; sharded, each rank updates its slice "
        "and keeps its optimizer state alone; delayed, apply the gradient before while this one is exchanged; "
        "averaging, update alone and average the weights now and then; gossip, average with one other rank each time; "
        "master, rank 0 reads the data, has the loss and updates; server, ranks that own spans sum and update.",
        choices=("allreduce", "delayed", "sharded", "averaging", "gossip", "master", "server"),
    )
    fc: str = option(
        "data",
        "Where fully connected layers live: data, on every rank; hybrid, their columns divided among ranks; pipeline, "
        "on ranks of their own.",
        choices=("data", "hybrid", "pipeline"),
    )
    fc_ranks: int = option(1, "Of --fc pipeline: ranks that hold fully connected layers.", low=1)
    fc_in_flight: int = option(
        2, "Of --fc pipeline: micro-batches (--accumulate) of one rank that may be on their way at once.", low=1
    )
    fc_update: str = option(
        "accumulate",
        "Of --fc pipeline: when fully connected layers are updated: accumulate, once an iteration, which is exact; "
        "each, at every message.",
        choices=("accumulate", "each"),
    )
    average_every: int = option(8, "Of averaging: iterations between averages.", low=1)
    average_momentum: str = option(
        "average",
        "Of averaging: what an average does to the optimizer's state: each rank keeps its own, all take the mean, or "
        "all begin anew.",
        choices=("keep", "average", "reset"),
    )
    average_from: int = option(0, "Of averaging: iterations of all-reduce before it begins (post-local SGD).", low=0)
    outer_momentum: float = option(
        0.0, "Of averaging: Nesterov momentum of the step from average to average (DiLoCo).", low=0, below=1
    )
    outer_lr: float = option(1.0, "Of averaging: how far to step from the last average towards this one.", above=0)
    servers: int = option(1, "Of server: ranks that own spans of the weights, from rank 0 on.", low=1)
    dedicated: bool = option(False, "Of server: whether servers only serve, and others train.")
    server_levels: int = option(
        1, "Of server: 2 has the head of each node sum what its ranks made first.", low=1, high=2
    )
    staleness: int = option(
        0, "Of server: iterations that a rank may be ahead of the slowest; 0: all sums are whole, exact.", low=0
    )
    asynchronous: bool = option(
        False,
        "Of server and averaging: parts of batches go to whoever is free, and what it learns is added on arrival.",
    )
    gossip_window: int = option(8, "Of gossip: iterations that ranks may be apart.", low=0)
    algorithm: str = option(
        "auto",
        "All-reduce: auto, by size and what `ringtrain tune` measured; mpi, the MPI's own; mapped or routed, in memory "
        "that the ranks of a node share; or a schedule: ring, tree, "
        "double-tree, butterfly, circulant, recursive-doubling, star, sliced, hierarchical, hierarchical-leader or "
        "hierarchical:INNER:OUTER. With --reproducible: auto, mapped, canonical, or a schedule that adds in its order.",
        short="a",
    )
    tuning: str | None = option(
        None,
        "Tuning file that `auto` goes by; it must be of this machine. [RINGTRAIN_TUNING, or ringtrain/tuning.json "
        "under ~/.config where it is there and fits]",
    )
    wire: str = option(
        "none",
        "What gradients are rounded to on their way, to halve the bytes; sums are float32.",
        choices=("none", "float16", "bfloat16"),
    )
    compress: str = option(
        "none",
        "Send less than the gradients, and keep the rest for later (error feedback): top-k, each parameter's largest "
        "elements; powersgd, two thin factors of each matrix.",
        choices=("none", "top-k", "powersgd"),
    )
    compress_ratio: float = option(0.01, "Of top-k: the share of elements that goes.", above=0, high=1)
    compress_rank: int = option(4, "Of powersgd: columns of the factors.", low=1)
    compress_from: int = option(0, "Of compression: iterations of whole gradients before it begins.", low=0)
    reproducible: bool = option(
        False,
        "Bitwise the same weights at any number of ranks, up to --shards: the batch is cut into so many parts, whose "
        "gradients are added in one fixed order.",
    )
    shards: int = option(
        8,
        "Of --reproducible: parts of the batch, of which each rank computes some; there can be no more ranks.",
        low=1,
        high=65536,
    )
    bucket_bytes: int = option(4 << 20, "Gradient bytes that are exchanged together, about.", low=1)
    overlap: str = option(
        "backward",
        "When gradients travel: none, after backward; backward, while it runs; forward, weights wait until forward "
        "needs them too.",
        choices=("none", "backward", "forward"),
    )
    segment_bytes: int | None = option(
        None,
        "Bytes of a message: the addition of one overlaps the next. [256 KiB within a node, 60,000 between nodes]",
        low=1,
    )
    deadline_s: float = option(300.0, "Seconds without progress of any rank until the run ends as stalled.", above=0)
    check_replicas: int | None = option(
        None,
        "Iterations between checks that all ranks hold the same weights and state, bit by bit, besides those at each "
        "evaluation, checkpoint and epoch's end; 0: only at the start and the end. [no others]",
        low=0,
    )
    guard: bool = option(True, "Watch every collective: ranks that differ, or do not come, are named.")

    elastic: str | None = option(
        None,
        "Survive the death of ranks, under `mpirun --with-ft ulfm`: shrink, the others go on (a bare --elastic means "
        "that); replace, and new ranks are started in place of the dead.",
        choices=("shrink", "replace"),
        bare="shrink",
    )
    trace: str | None = option(
        None,
        "Write what each rank does in a few iterations, moment by moment, for Perfetto or chrome://tracing: to "
        "trace.json, or to FILE; a bare name is in the run folder.",
        bare="trace.json",
    )
    trace_iterations: str | None = option(
        None, "Of --trace: FIRST:LAST, iterations counted from 1. [the 6th to the 8th of this start]"
    )
    slow: str | None = option(
        None, "Make a rank so many times slower at its own work, to see what a strategy makes of it: RANK:TIMES, 1:2."
    )

    out: str | None = option(None, "Run folder. [runs/MODEL-DATE-TIME]", short="o")
    resume: str | None = option(
        None,
        "Go on from a checkpoint: a file, a run folder, or `auto`: the newest good one in --out, if there is any.",
    )
    evaluate_every: int = option(0, "Iterations between evaluations. [0: each epoch's end]", low=0)
    checkpoint_every: int = option(0, "Iterations between checkpoints. [0: each epoch's end]", low=0)
    stop_before_s: float | None = option(
        None,
        "Seconds before the end of its job at which a run stops by itself, its checkpoint written, with exit code 75; "
        "0: never. [120, or a tenth of what is left at the start if that is less, where Slurm or RINGTRAIN_JOB_END "
        "tells the end]",
        low=0,
    )
    keep: int = option(2, "Newest checkpoints that are kept; the best is kept besides.", low=1)


# A resumed run must keep these: they decide the order of its examples, the optimizer's state or the order in
# which gradients are added. The model is also compared layer by layer, and the data by checksum.
FIXED_ON_RESUME = (
    "synthetic", "batch", "seed", "dtype", "optimizer", "momentum_correction", "reproducible", "shards"
)  # fmt: skip
# A reproducible run must keep these too: they decide the bits of a product.
FIXED_WHERE_REPRODUCIBLE = ("device", "precision", "threads")

# The keys of a model file's recipe: how to train it, and not where.
RECIPE_KEYS = (
    "batch", "epochs", "iterations", "accumulate", "optimizer", "lr", "base_batch", "lr_policy", "lr_steps", "lr_gamma",
    "lr_power", "warmup", "momentum", "beta2", "trust", "trust_limit", "momentum_correction", "weight_decay",
    "decay_bias_norm", "clip_norm", "label_smoothing",
)  # fmt: skip

# Keys of one start of a run, not passed to its continuation.
OF_ONE_START = ("out", "resume", "elastic", "tuning", "slow", "trace", "trace_iterations", "stop_before_s")

# Keys of earlier versions in stored runs. They change no result, and are ignored.
FORMER_KEYS = ("stage", "stage_keep", "progress")


def config_fields(kind=TrainConfig):
    """Return the fields of a record class, by name."""
    return {f.name: f for f in fields(kind)}


def default_of(spec):
    """Return a field's default."""
    return spec.default_factory() if spec.default is MISSING else spec.default


def kind_of(spec) -> type:
    """Return the scalar type of a field annotated ``T`` or ``T | None``."""
    return spec.type.__args__[0] if isinstance(spec.type, type(int | None)) else spec.type
