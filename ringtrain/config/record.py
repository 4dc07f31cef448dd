"""The options of a run: one frozen record, from which the command line's flags are made.

Every field is a flag and a key of a TOML run file. :mod:`ringtrain.config.resolve` merges the sources.
"""

from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import get_args

OPTIMIZER_NAMES = ["sgd", "nesterov", "adamw", "adam", "rmsprop", "lars", "lamb"]  # a list: plug-ins add to it


def option(
    default, help, *, choices=None, low=None, above=None, below=None, high=None, short=None, bare=None, epochs=False
):
    """Return a field with the properties of its flag: help text with its unit, and the accepted values; ``choices``: a
    list if plug-ins may add to it; ``bare``: the meaning of the flag without a value; ``epochs``: whether a number of
    iterations may be given in epochs, as the text "5ep", which becomes iterations once the data are known.
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
    data: str | None = option(
        None,
        "Data set: an HDF5 file from `ringtrain data make`; arrays of other files (FILE.h5:images,labels; F.npz; "
        "x.npy,y.npy); a folder of images, one subfolder a class; tar shards; or a quoted pattern of files "
        '("train-*.h5", "train-{000..099}.tar"). [digits: the shipped one]',
    )
    test_data: str | None = option(None, "Test part, named as --data is. [the test part of --data, if it has one]")
    stream: str = option(
        "auto",
        "Whether examples stay in their files: yes, read in blocks ahead; no, in memory; auto, yes if they take more "
        "than half of the memory that is available.",
        choices=("auto", "yes", "no"),
    )
    shuffle: str | None = option(
        None,
        "Order of an epoch: full, one permutation; blocks, near examples within windows, for sets in files. [full up "
        "to 4 GiB of inputs, else blocks]",
        choices=("full", "blocks"),
    )
    classes: int | None = option(
        None, "Classes: the units of the model's last layer, in place of those in its file.", low=1
    )
    init: str | None = option(
        None,
        "Begin with these weights: a .safetensors file with names of PyTorch or torchvision, a checkpoint or a run "
        "folder. What does not match by name, or is a last layer of another shape, is drawn anew.",
    )
    freeze: str | None = option(
        None,
        "Layers or parameters that are not trained: names, separated by commas, with the wildcards of a shell: "
        "'conv*,stage1.*'; none: all are trained.",
    )
    synthetic: bool = option(False, "Train on one fixed random batch: speed without data loading.")

    batch: int = option(64, "Examples an iteration, over all ranks.", low=1, short="b")
    epochs: int | None = option(10, "Passes over the training set.", low=1)
    iterations: int | None = option(None, "Iterations, in place of epochs.", low=1)
    accumulate: int = option(1, "Micro-batches of an iteration on each rank, to save memory.", low=1, high=65536)

    optimizer: str = option("sgd", "Update rule.", choices=OPTIMIZER_NAMES)
    lr: float = option(0.01, "Learning rate.", above=0)
    base_batch: int | None = option(
        None, "Linear scaling rule: --lr holds for this batch, and is multiplied by batch / base-batch.", low=1
    )
    lr_policy: str = option(
        "constant",
        "Schedule of the learning rate.",
        choices=("constant", "step", "multistep", "poly", "inv", "cosine"),
    )
    min_lr: float = option(
        0.0,
        "Least learning rate: cosine and poly end there, the others do not fall below it. --base-batch scales it too.",
        low=0,
    )
    lr_steps: tuple[int | str, ...] = option(
        (), "Drops of `multistep`, in iterations or epochs: 30ep,60ep; or the period of `step`.", low=1, epochs=True
    )
    lr_gamma: float = option(0.1, "Factor of `step` and `multistep`; gamma of `inv`.", above=0)
    lr_power: float = option(1.0, "Power of `poly` and `inv`.", above=0)
    warmup: int | str = option(0, "Iterations of linear warm-up, or epochs: 5ep, 0.5ep.", low=0, epochs=True)
    momentum: float = option(
        0.9, "Momentum of sgd, nesterov, rmsprop and lars; beta1 of adamw, adam and lamb.", low=0, below=1
    )
    beta2: float = option(
        0.999, "Second moment's decay of adamw, adam and lamb; smoothing constant (alpha) of rmsprop.", low=0, below=1
    )
    eps: float | None = option(
        None, "Added to the root of the second moment in adamw, adam, rmsprop and lamb. [1e-8; lamb: 1e-6]", above=0
    )
    trust_coefficient: float | None = option(None, "Trust coefficient of lars. [0.001]", above=0)
    trust_limit: float | None = option(None, "Largest trust ratio of lars and lamb. [no limit]", above=0)
    momentum_correction: bool = option(
        False, "With lars: multiply the momentum by new / old learning rate when the rate changes."
    )
    batch_norm: str = option(
        "model",
        "Statistics of batch normalisation: model, over the ghost batches of the model file; ghost:SIZE, over ghost "
        "batches of SIZE examples; sync, over the whole batch, summed over ranks in every layer.",
    )
    weight_decay: float = option(
        0.0,
        "Weight decay: L2 in sgd, nesterov, adam, rmsprop and lars, decoupled in adamw, part of the scaled step in "
        "lamb.",
        low=0,
    )
    decay_bias_norm: bool = option(True, "Whether biases and normalisation scales decay too.")
    clip_norm: float | None = option(None, "Clip the gradient to this global L2 norm.", above=0)
    ema: float | None = option(
        None,
        "Keep an exponential moving average of the weights, with this decay, such as 0.999; evaluations, `evaluate` "
        "and `predict` use it.",
        above=0,
        below=1,
    )
    loss: str = option("ce", "Loss: ce, softmax cross-entropy; mse; mae; huber; bce, binary cross-entropy of logits.")
    huber_delta: float = option(1.0, "With huber: the error from which the loss is linear.", above=0)
    label_smoothing: float = option(0.0, "With ce: share of the target spread over all classes.", low=0, below=1)
    augment: bool = option(True, "Random crops and flips, if the model's input has them.")
    resize: str | None = option(
        None,
        "Resize images: HxW; or N, the shorter side, then the centre NxN. [image files: the shorter side to 256/224 of "
        "the model's input, then its centre crop; arrays: as they are]",
    )
    random_resized_crop: str | None = option(
        None,
        "Train on a random box of each image, of a share LEAST:MOST of its area, resized to the model's input; bare: "
        "0.08:1.",
        bare="0.08:1",
    )
    colour_jitter: str | None = option(
        None,
        "Change brightness, contrast, saturation and hue of RGB images at random: B,C,S,H, such as 0.4,0.4,0.4,0.1.",
    )
    mixup: float | None = option(
        None, "Mix the images and labels of a batch in pairs, by a share of Beta(ALPHA, ALPHA).", low=0.01, high=100
    )
    cutmix: float | None = option(
        None,
        "Paste a box of another image of the batch, of a share of Beta(ALPHA, ALPHA), and mix their labels. With "
        "--mixup each batch takes one of the two.",
        low=0.01,
        high=100,
    )
    random_erasing: float = option(0.0, "Probability that a random box of an image becomes the mean.", low=0, high=1)

    seed: int = option(0, "Seed of weights, order, augmentation and dropout.", low=0, high=2**63 - 1)
    dtype: str = option(
        "float32", "Type of weights and gradients; float64 is for checks.", choices=("float32", "float64")
    )
    device: str = option("cpu", "Device: cpu; or cuda, one GPU a rank.", choices=("cpu", "cuda"))
    precision: str = option(
        "float32",
        "With --device cuda: float32; tf32, products on TF32 tensor cores; bfloat16 or float16, activations and their "
        "products in 16 bits. Weights, gradients and sums are always float32.",
        choices=("float32", "tf32", "bfloat16", "float16"),
    )
    loss_scale: float | None = option(
        None,
        "With --precision float16: factor of the loss, which keeps small gradients. [dynamic: from 65536, halved if a "
        "gradient is not finite, doubled after 2000 finite ones]",
        above=0,
    )
    mpi_cuda: str = option(
        "auto",
        "With --device cuda: how device memory travels between processes: direct, the MPI takes it; staged, through "
        "host memory; auto, direct if a trial shows that it works and is faster.",
        choices=("auto", "direct", "staged"),
    )
    ops: str = option("cpu", "Kernels of --device cpu: `cpu`, compiled, or `reference`, plain NumPy.")
    threads: int | None = option(None, "Threads of a rank's operations. [OMP_NUM_THREADS if set, or 1]", low=1)
    recompute: bool = option(
        False,
        "Activation checkpointing: keep few activations, and compute the others again in backward. Less memory, a "
        "third more arithmetic, the same bits.",
    )

    sync: str = option("allreduce", "How ranks stay in step: STRATEGIES.")  # ringtrain.exchange.catalogue has them
    fc: str = option(
        "data",
        "Placement of fully connected layers: data, on every rank; hybrid, columns divided among ranks; pipeline, on "
        "dedicated ranks.",
        choices=("data", "hybrid", "pipeline"),
    )
    fc_ranks: int = option(1, "With --fc pipeline: ranks that hold fully connected layers.", low=1)
    fc_in_flight: int = option(
        2, "With --fc pipeline: micro-batches (--accumulate) of one rank in flight at once.", low=1
    )
    fc_update: str = option(
        "accumulate",
        "With --fc pipeline: when fully connected layers are updated: accumulate, once an iteration, which is exact; "
        "micro-batch, after every micro-batch.",
        choices=("accumulate", "micro-batch"),
    )
    average_every: int = option(8, "With averaging: iterations between averages.", low=1)
    average_momentum: str = option(
        "average",
        "With averaging: the optimizer's state after an average: keep, each rank's own; average, the mean; reset, 0.",
        choices=("keep", "average", "reset"),
    )
    average_from: int = option(0, "With averaging: iterations of all-reduce before it begins (post-local SGD).", low=0)
    outer_momentum: float = option(
        0.0, "With averaging: Nesterov momentum of the step between averages (DiLoCo).", low=0, below=1
    )
    outer_lr: float = option(1.0, "With averaging: step from the last average towards this one, as a factor.", above=0)
    servers: int = option(1, "With server: ranks that own spans of the weights, from rank 0 on.", low=1)
    dedicated: bool = option(False, "With server: servers only serve, and the other ranks train.")
    server_levels: int = option(
        1, "With server: levels of the sum; 2: one rank of each node first sums its node's gradients.", low=1, high=2
    )
    staleness: int = option(
        0, "With server: iterations that a rank may be ahead of the slowest; 0: exact sums over all ranks.", low=0
    )
    asynchronous: bool = option(
        False,
        "With server and averaging: idle ranks fetch parts of batches; each result is added as it arrives.",
    )
    gossip_max_lag: int = option(8, "With gossip: most iterations between the fastest and the slowest rank.", low=0)
    algorithm: str = option(
        "auto",
        "All-reduce: ring; auto, by size and the figures of `ringtrain tune`; mpi, the MPI's own; mapped or routed, in "
        "shared memory of a node; or another schedule: tree, double-tree, butterfly, circulant, recursive-doubling, "
        "star, sliced, hierarchical, hierarchical-leader or hierarchical:INNER:OUTER. With "
        "--reproducible: auto, mapped, canonical, or a schedule that adds in its order.",
        short="a",
    )
    tuning: str | None = option(
        None,
        "Tuning file for `auto`, measured on this machine. [RINGTRAIN_TUNING, or ringtrain/tuning.json under ~/.config "
        "if it exists and fits]",
    )
    wire: str = option(
        "none",
        "Type of gradients in messages, which halves the bytes; sums are float32.",
        choices=("none", "float16", "bfloat16"),
    )
    compress: str = option(
        "none",
        "Compress gradients, with error feedback: top-k, each parameter's largest elements; powersgd, two thin factors "
        "of each matrix.",
        choices=("none", "top-k", "powersgd"),
    )
    compress_ratio: float = option(0.01, "With top-k: the share of elements that is sent.", above=0, high=1)
    compress_rank: int = option(4, "With powersgd: columns of the factors.", low=1)
    compress_from: int = option(0, "With --compress: iterations of whole gradients before it begins.", low=0)
    reproducible: bool = option(
        False,
        "Bitwise the same weights at any number of ranks up to --shards: the batch is cut into --shards parts, whose "
        "gradients are added in one fixed order.",
    )
    shards: int = option(
        8,
        "With --reproducible: parts of the batch, divided among ranks; the largest number of ranks.",
        low=1,
        high=65536,
    )
    bucket_bytes: int = option(4 << 20, "Approximate gradient bytes of a bucket, which are exchanged together.", low=1)
    overlap: str = option(
        "backward",
        "When gradients travel: none, after backward; backward, while it runs; forward, weights wait until forward "
        "needs them too.",
        choices=("none", "backward", "forward"),
    )
    segment_bytes: int | None = option(
        None,
        "Bytes of a message: adding one overlaps receiving the next. [256 KiB within a node, 60,000 between nodes]",
        low=1,
    )
    deadline_s: float = option(300.0, "Seconds without progress of any rank until the run ends as stalled.", above=0)
    check_replicas: int | None = option(
        None,
        "Iterations between bitwise checks that all ranks hold the same weights and state, in addition to those at "
        "each evaluation, checkpoint and epoch's end; 0: only at the start and the end. [no others]",
        low=0,
    )
    check_collectives: bool = option(True, "Check every collective, and name ranks that differ or are missing.")

    elastic: str | None = option(
        None,
        "Survive the death of ranks, under `mpirun --with-ft ulfm`: shrink, the others continue (the meaning of a bare "
        "--elastic); replace, new ranks take the places of the dead.",
        choices=("shrink", "replace"),
        bare="shrink",
    )
    plan: str | None = option(
        None,
        "JSON of `ringtrain plan`: show its prediction of this run at the start, and how far off it was at the end.",
    )
    trace: str | None = option(
        None,
        "Write a timeline of each rank in a few iterations, for Perfetto or chrome://tracing: to trace.json, or to "
        "FILE; a bare name is in the run folder.",
        bare="trace.json",
    )
    trace_iterations: str | None = option(
        None, "With --trace: FIRST:LAST, iterations counted from 1. [the 6th to the 8th of this start]"
    )
    inject_slowdown: str | None = option(
        None, "Slow a rank's own work down by a factor, to test a strategy: RANK:TIMES, such as 1:2."
    )

    out: str | None = option(None, "Run folder. [runs/MODEL-DATE-TIME]", short="o")
    tensorboard: bool = option(
        False, "Write scalars for TensorBoard into the run folder as the run goes: `tensorboard --logdir runs`."
    )
    resume: str | None = option(
        None,
        "Resume from a checkpoint: a file, a run folder, or `auto`: the newest good one in --out, if it exists.",
    )
    evaluate_every: int = option(0, "Iterations between evaluations. [0: each epoch's end]", low=0)
    best_by: str | None = option(
        None,
        "Test figure by which the best checkpoint is chosen. [accuracy, or loss where there is none]",
        choices=("accuracy", "loss"),
    )
    early_stop: int | None = option(
        None, "End the run after this many evaluations in a row without a better one (--best-by).", low=1
    )
    checkpoint_every: int = option(0, "Iterations between checkpoints. [0: each epoch's end]", low=0)
    stop_before_s: float | None = option(
        None,
        "Seconds before the end of the job at which a run saves a checkpoint and stops, with exit code 75; 0: never. "
        "[120, or a tenth of the time left at the start if less; needs the end from Slurm or RINGTRAIN_JOB_END]",
        low=0,
    )
    keep: int = option(2, "Number of newest checkpoints to keep, beside the best.", low=1)


# A resumed run must keep these: they decide the order of its examples, the optimizer's state or the order in
# which gradients are added. The model is also compared layer by layer, and the data by checksum.
FIXED_ON_RESUME = (
    "synthetic", "batch", "seed", "shuffle", "dtype", "loss", "classes", "optimizer", "momentum_correction", "ema",
    "reproducible", "shards",
)  # fmt: skip
# A reproducible run must keep these too: they decide the bits of a product.
FIXED_WHERE_REPRODUCIBLE = ("device", "precision")

# The keys of a model file's recipe: how to train it, and not where.
RECIPE_KEYS = (
    "batch", "epochs", "iterations", "accumulate", "optimizer", "lr", "base_batch", "lr_policy", "lr_steps", "lr_gamma",
    "lr_power", "min_lr", "warmup", "momentum", "beta2", "eps", "trust_coefficient", "trust_limit",
    "momentum_correction", "weight_decay", "decay_bias_norm", "clip_norm", "ema", "loss", "huber_delta",
    "label_smoothing", "resize", "random_resized_crop", "colour_jitter", "mixup", "cutmix", "random_erasing",
)  # fmt: skip

# Keys of one start of a run, not passed to its continuation.
OF_ONE_START = (
    "out", "resume", "elastic", "tuning", "inject_slowdown", "plan", "trace", "trace_iterations", "stop_before_s",
)  # fmt: skip

# Keys of earlier versions in run files, checkpoints and recipes, and their names now. None: the key is gone; it changed
# no result, and is ignored.
FORMER_KEYS = {
    "stage": None,
    "stage_keep": None,
    "progress": None,
    "guard": "check_collectives",
    "slow": "inject_slowdown",
    "trust": "trust_coefficient",
    "gossip_window": "gossip_max_lag",
}
FORMER_VALUES = {("fc_update", "each"): "micro-batch"}


def config_fields(kind=TrainConfig):
    """Return the fields of a record class, by name."""
    return {f.name: f for f in fields(kind)}


def default_of(spec):
    """Return a field's default."""
    return spec.default_factory() if spec.default is MISSING else spec.default


def kind_of(spec) -> type:
    """Return the scalar type of a field annotated ``T`` or ``T | None``."""
    return get_args(spec.type)[0] if isinstance(spec.type, UnionType) else spec.type
