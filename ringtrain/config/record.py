"""The options of a run: a frozen record, of a record for each room that has options."""

from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import get_type_hints

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import option

# A list: plug-ins add to it.
OPTIMIZER_NAMES = ["sgd", "nesterov", "adamw", "adam", "rmsprop", "lars", "lamb", "muon"]
model_option = partial(option, section="Model")
data_option = partial(option, section="Data")
image_option = partial(option, section="Images", recipe=True)
length_option = partial(option, section="Batch and length", recipe=True)
output_option = partial(option, section="Output and checkpoints")
diagnosis_option = partial(option, section="Diagnosis")
optimizer_option = partial(option, section="Optimizer", recipe=True)
rate_option = partial(option, section="Learning rate", recipe=True)
device_option = partial(option, section="Device and precision")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The network and its loss."""

    model: str = model_option("digits", "A model of `ringtrain models list`, or a TOML file.", short="m")
    classes: int | None = model_option(
        None, "Classes: the units of the model's last layer, in place of those in its file.", low=1, fixed=True
    )
    init: str | None = model_option(
        None,
        "Begin with these weights: a .safetensors file with names of PyTorch, torchvision or timm, a checkpoint or a "
        "run folder. What does not match by name, or is a last layer of another shape, is drawn anew.",
    )
    freeze: str | None = model_option(
        None,
        "Layers or parameters that are not trained: names, of the model or of a file of weights, separated by commas, "
        "with the wildcards of a shell: 'conv*,stage1.*'; none: all are trained.",
    )
    batch_norm: str = model_option(
        "model",
        "Statistics of batch normalisation: model, over the ghost batches of the model file; ghost:SIZE, over ghost "
        "batches of SIZE examples; sync, over the whole batch, summed over ranks in every layer.",
    )
    loss: str = model_option(
        "ce", "Loss: ce, softmax cross-entropy; mse, mae, huber; bce, binary, of logits.", recipe=True, fixed=True
    )
    huber_delta: float = model_option(
        1.0, "With huber: the error from which the loss is linear.", above=0, used_by=("loss", ("huber",)), recipe=True
    )
    label_smoothing: float = model_option(
        0.0, "With ce: share of the target spread over classes.", low=0, below=1, used_by=("loss", ("ce",)), recipe=True
    )


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The examples, and what is done with their images."""

    data: str | None = data_option(
        None,
        "Data set, a file, folder or pattern: an HDF5 file from `ringtrain data make`; arrays of other files "
        "(FILE.h5:images,labels; F.npz; x.npy,y.npy); a folder of images, one subfolder a class; tar shards; or a "
        'quoted pattern of files ("train-*.h5", "train-{000..099}.tar"). [digits]',
    )
    layout: str = data_option(
        "channels-last",
        "Axes of arrays: channels-last (N, H, W, C); or channels-first (N, C, H, W), as PyTorch has them. Files of "
        "`ringtrain data make` have channels last.",
        choices=("channels-last", "channels-first"),
    )
    ignore_label: int | None = data_option(None, "A class number that means no label, as 255 in masks. [-1 alone]")
    test_data: str | None = data_option(None, "Test part, named as --data is. [the test part of --data, if it has one]")
    stream: str = data_option(
        "auto",
        "Whether examples stay in their files: yes, read in blocks ahead; no, in memory; auto, yes if they take more "
        "than half of the memory that is available.",
        choices=("auto", "yes", "no"),
    )
    shuffle: str | None = data_option(
        None,
        "Order of an epoch: full, one permutation; blocks, near examples within windows, for sets in files. [full up "
        "to 4 GiB of inputs, else blocks]",
        choices=("full", "blocks"),
        fixed=True,
    )
    bad_images: str = data_option(
        "refuse",
        "What an image file that cannot be read or decoded does: refuse, end the run; skip, in training another image "
        "takes its place, by seed and example, and evaluations leave it out; the log lists all.",
        choices=("refuse", "skip"),
    )
    synthetic: bool = data_option(False, "Train on one fixed random batch: speed without data loading.", fixed=True)

    augment: bool = image_option(True, "Random crops and flips, if the model's input has them.", recipe=False)
    resize: str | None = image_option(
        None,
        "Resize images: HxW; or N, the shorter side, then the centre NxN. [image files: the shorter side to 256/224 of "
        "the model's input, then its centre crop; arrays: as they are]",
    )
    random_resized_crop: str | None = image_option(
        None,
        "Train on a random box of each image, of a share LEAST:MOST of its area, resized to the model's input; bare: "
        "0.08:1.",
        bare="0.08:1",
    )
    colour_jitter: str | None = image_option(
        None,
        "Change brightness, contrast, saturation and hue of RGB images at random: B,C,S,H, such as 0.4,0.4,0.4,0.1.",
    )
    trivial_augment: bool = image_option(
        False, "Change each image by one of 14 operations at a random magnitude, as torchvision's TrivialAugmentWide."
    )
    mixup: float | None = image_option(
        None, "Mix the images and labels of a batch in pairs, by a share of Beta(ALPHA, ALPHA).", low=0.01, high=100
    )
    cutmix: float | None = image_option(
        None,
        "Paste a box of another image of the batch, of a share of Beta(ALPHA, ALPHA), and mix their labels. With "
        "--mixup each batch takes one of the two.",
        low=0.01,
        high=100,
    )
    random_erasing: float = image_option(
        0.0, "Probability that a random box of an image becomes the mean.", low=0, high=1
    )


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """The update rule and its learning rate."""

    optimizer: str = optimizer_option("sgd", "Update rule.", choices=OPTIMIZER_NAMES, fixed=True)
    momentum: float | None = optimizer_option(
        None, "Momentum; beta1 of adamw, adam and lamb. [0.9; muon: 0.95]", low=0, below=1
    )
    beta2: float = optimizer_option(
        0.999, "Second moment's decay of adamw, adam, lamb and muon; alpha of rmsprop.", low=0, below=1
    )
    eps: float | None = optimizer_option(
        None,
        "Added to the root of the second moment in adamw, adam, rmsprop, lamb and muon. [1e-8; lamb: 1e-6]",
        above=0,
        used_by=("optimizer", ("lamb", "adamw", "adam", "rmsprop", "muon")),
    )
    trust_coefficient: float | None = optimizer_option(
        None, "Trust coefficient of lars. [0.001]", above=0, used_by=("optimizer", ("lars",))
    )
    adjust_lr: str = optimizer_option(
        "match_rms_adamw",
        "How muon adjusts the rate of a matrix: match_rms_adamw, times 0.2 sqrt(max(in, out)), so that a rate of adamw "
        "suits; original, times sqrt(max(1, out / in)).",
        choices=("match_rms_adamw", "original"),
        used_by=("optimizer", ("muon",)),
    )
    ns_steps: int = optimizer_option(
        5, "Newton-Schulz steps of muon, in each update.", low=1, high=99, used_by=("optimizer", ("muon",))
    )
    weight_decay: float = optimizer_option(
        0.0,
        "Weight decay: L2 in sgd, nesterov, adam, rmsprop and lars, decoupled in adamw and muon, part of the scaled "
        "step in lamb.",
        low=0,
    )
    decay_bias_norm: bool = optimizer_option(True, "Whether biases and normalisation scales decay too.")
    clip_norm: float | None = optimizer_option(None, "Clip the gradient to this global L2 norm.", above=0)
    ema: float | None = optimizer_option(
        None,
        "Keep an exponential moving average of the weights, with this decay, such as 0.999; evaluations, `evaluate` "
        "and `predict` use it.",
        above=0,
        below=1,
        fixed=True,
    )

    lr: float = rate_option(0.01, "Learning rate.", above=0)
    base_batch: int | None = rate_option(
        None, "Linear scaling rule: --lr holds for this batch, and is multiplied by batch / base-batch.", low=1
    )
    warmup: int | str = rate_option(0, "Iterations of linear warm-up, or epochs: 5ep, 0.5ep.", low=0, epochs=True)
    lr_policy: str = rate_option(
        "constant", "Schedule of the learning rate.", choices=("constant", "step", "multistep", "poly", "inv", "cosine")
    )
    lr_steps: tuple[int | str, ...] = rate_option(
        (), "Drops of `multistep`, in iterations or epochs: 30ep,60ep; or the period of `step`.", low=1, epochs=True
    )
    lr_gamma: float = rate_option(0.1, "Factor of `step` and `multistep`; gamma of `inv`.", above=0)
    lr_power: float = rate_option(1.0, "Power of `poly` and `inv`.", above=0)
    min_lr: float = rate_option(
        0.0,
        "Least learning rate: cosine and poly end there, the others do not fall below it. --base-batch scales it too.",
        low=0,
        used_by=("lr_policy", ("step", "multistep", "poly", "inv", "cosine")),
    )


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """Where a rank computes, and in which numbers."""

    device: str = device_option(
        "cpu", "Device: cpu; or cuda, one GPU a rank.", choices=("cpu", "cuda"), fixes_bits=True
    )
    precision: str = device_option(
        "float32",
        "With --device cuda: float32; tf32, products on TF32 tensor cores; bfloat16 or float16, activations and their "
        "products in 16 bits. Weights, gradients and sums are always float32.",
        choices=("float32", "tf32", "bfloat16", "float16"),
        fixes_bits=True,
        used_by=("device", ("cuda",)),
    )
    loss_scale: float | None = device_option(
        None,
        "With --precision float16: factor of the loss, which keeps small gradients. [dynamic: from 65536, halved if a "
        "gradient is not finite, doubled after 2000 finite ones]",
        above=0,
        used_by=("precision", ("float16",)),
    )
    dtype: str = device_option(
        "float32", "Type of weights and gradients; float64 is for checks.", choices=("float32", "float64"), fixed=True
    )
    ops: str = device_option(
        "cpu", "Kernels of --device cpu: `cpu`, compiled, or `reference`, plain NumPy.", used_by=("device", ("cpu",))
    )
    threads: int | None = device_option(None, "Threads of a rank's operations. [OMP_NUM_THREADS if set, or 1]", low=1)
    recompute: bool = device_option(
        False,
        "Activation checkpointing: keep few activations, and compute the others again in backward. Less memory, a "
        "third more arithmetic, the same bits.",
    )
    mpi_cuda: str = device_option(
        "auto",
        "With --device cuda: how device memory travels between processes: direct, the MPI takes it; staged, through "
        "host memory; auto, direct if a trial shows that it works and is faster.",
        choices=("auto", "direct", "staged"),
        used_by=("device", ("cuda",)),
    )


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The length of a run, its files, and how it is watched."""

    batch: int = length_option(64, "Examples an iteration, over all ranks.", low=1, short="b", fixed=True)
    accumulate: int = length_option(1, "Micro-batches of an iteration on each rank, to save memory.", low=1, high=65536)
    epochs: int | None = length_option(10, "Passes over the training set.", low=1)
    iterations: int | None = length_option(None, "Iterations, in place of epochs.", low=1)
    seed: int = length_option(
        0, "Seed of weights, order, augmentation and dropout.", low=0, high=2**63 - 1, recipe=False, fixed=True
    )

    out: str | None = output_option(None, "Run folder. [runs/MODEL-DATE-TIME]", short="o", once=True, about_files=True)
    tensorboard: bool = output_option(
        False, "Write scalars into the run folder as the run goes, for `tensorboard --logdir runs`.", about_files=True
    )
    resume: str | None = output_option(
        None,
        "Resume from a file, a run folder, or `auto`: the newest good checkpoint in --out, if it exists.",
        once=True,
        about_files=True,
    )
    best_by: str | None = output_option(
        None,
        "Test figure by which the best checkpoint is chosen. [accuracy, or loss where there is none]",
        choices=("accuracy", "loss"),
    )
    early_stop: int | None = output_option(
        None, "End after so many evaluations without a better one: in a row, by --best-by.", low=1
    )
    evaluate_every: int = output_option(0, "Iterations between evaluations. [0: each epoch's end]", low=0)
    checkpoint_every: int = output_option(0, "Iterations between checkpoints. [0: each epoch's end]", low=0)
    keep: int = output_option(2, "Number of newest checkpoints to keep, beside the best.", low=1)
    stop_before_s: float | None = output_option(
        None,
        "Seconds before the end of the job at which a run saves a checkpoint and stops, with exit code 75; 0: never. "
        "[120, or a tenth of the time left at the start if less; needs the end from Slurm or RINGTRAIN_JOB_END]",
        low=0,
        once=True,
    )

    trace: str | None = diagnosis_option(
        None,
        "Write a timeline of each rank in a few iterations, for Perfetto or chrome://tracing: to trace.json, or to "
        "FILE; a bare name is in the run folder.",
        bare="trace.json",
        once=True,
        about_files=True,
    )
    inject_slowdown: str | None = diagnosis_option(
        None, "Slow a rank's own work down by a factor, to test a strategy: RANK:TIMES, such as 1:2.", once=True
    )


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run. In each record None means: not set, the model's recipe decides, or off. No two records have an
    option of one name: in files and as flags options have no record."""

    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    run: RunConfig = field(default_factory=RunConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)

    def values(self) -> dict:
        """Return the value of every option, by its name."""
        return {name: getattr(getattr(self, _RECORDS[name]), name) for name in config_fields()}

    def changed(self, **options) -> "TrainConfig":
        """Return the configuration with other values of these options."""
        by_record: dict[str, dict] = defaultdict(dict)
        for name, value in options.items():
            by_record[_RECORDS[name]][name] = value
        return replace(self, **{name: replace(getattr(self, name), **changes) for name, changes in by_record.items()})


_BY_RECORD = [(name, spec) for name, record in get_type_hints(TrainConfig).items() for spec in fields(record)]
_RECORDS = {spec.name: record for record, spec in _BY_RECORD}


def config_fields() -> dict:
    """Return the field of every option by its name."""
    return {spec.name: spec for _, spec in _BY_RECORD}


def make_config(**options) -> TrainConfig:
    """Return the configuration of these options, and of the defaults of the others."""
    return TrainConfig().changed(**options)


def options_that(trait: str) -> list[str]:
    """Return the names of the options with this trait, such as ``recipe``: a parameter of ``option``."""
    return [name for name, spec in config_fields().items() if spec.metadata[trait]]


# Keys of earlier versions in run files, checkpoints and recipes, and their names now. None: the key is gone; it changed
# results by rounding at most, but for REMOVED_VALUES, and is ignored.
FORMER_KEYS = {
    "stage": None,
    "stage_keep": None,
    "progress": None,
    "guard": "check_collectives",
    "slow": "inject_slowdown",
    "trust": "trust_coefficient",
    "gossip_window": "gossip_max_lag",
    "fc_in_flight": None,
    "fc_update": None,
    "trace_iterations": None,
    "error_feedback": None,
    "momentum_correction": None,
    "trust_limit": None,
    "consensus_rate": None,
    "server_levels": None,
    "plan": None,
}
FROM_WEIGHTS = "start a run from its weights by --init"
LEAVE_OUT = f"leave it out, or {FROM_WEIGHTS}"
ONCE_AN_ITERATION = f"fully connected ranks update once an iteration: {FROM_WEIGHTS}"
ANY = "any value"
# Values of earlier versions that a run does not start with, since its results would be others; and what there is.
REMOVED_VALUES = {
    ("fc_update", "micro-batch"): ONCE_AN_ITERATION,
    ("fc_update", "each"): ONCE_AN_ITERATION,
    ("error_feedback", "ef21"): LEAVE_OUT,
    ("momentum_correction", "True"): LEAVE_OUT,
    ("trust_limit", ANY): LEAVE_OUT,
    ("consensus_rate", ANY): LEAVE_OUT,
    ("algorithm", "hierarchical-leader"): "give --algorithm hierarchical:tree:ring, which is the same",
    ("average_momentum", "reset"): "give --average-momentum average or keep",
}
