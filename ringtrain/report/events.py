"""The records that a run emits, and their form in ``log.jsonl``.

An event does not depend on its readers. In the log it is one object on one line:
``{"event": KIND, field: value, ...}``, KIND as in the table at the end of this file.

Numbering: iterations and epochs are counted from 1, so "iteration 7" means that seven are finished, and a
checkpoint of iteration 7 continues with the eighth. Accuracies are fractions of one. A field ``seconds``
is wall-clock time; of an :class:`Iteration`, :class:`EpochEnded` or :class:`Evaluated` it is a time stamp:
the time since :class:`RunStarted` of this process. A number that is not finite is written as null: JSON has no
word for it.
"""

import math
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The start of a run: the model, the data and the settings.

    version:         of ringtrain
    model:           name of the model
    parameters:      count of trained numbers
    data:            name of the data set
    train_examples:  in one epoch
    test_examples:   0 if the data set has no test part
    strategy:        how ranks stay in step, with its algorithm, such as "allreduce (ring)"
    exact:           whether an iteration equals serial training on the global batch
    ranks, nodes:    counts
    device:          the device of one rank, in words
    dtype:           of weights and gradients
    precision:       of activations, or of products
    reproducible:    what is fixed so that weights are the same at any number of ranks, in words; None if nothing is
    batch:           examples of one iteration, over all ranks
    optimizer:       in words, with its hyperparameters
    lr:              the schedule's initial learning rate, scaling by batch size included
    schedule:        how the learning rate changes, in words
    epochs:          total; None if iterations alone set the end
    iterations:      total, those before a resumption included
    iterations_per_epoch: the last of an epoch may be smaller
    resumed_at:      iterations finished before this process began; 0 for a new run
    seed:            of all random numbers
    folder:          of the run; None if nothing is kept
    best:            the highest test accuracy of the run before it was resumed; None without one
    date:            of the start, UTC, in ISO 8601
    hosts:           by rank
    command:         that started every rank
    versions:        of Python and packages: name → version
    mpi:             library, version, thread level
    job:             number of the batch job; None outside of one
    """

    version: str
    model: str
    parameters: int
    data: str
    train_examples: int
    test_examples: int
    strategy: str
    exact: bool
    ranks: int
    nodes: int
    device: str
    dtype: str
    batch: int
    optimizer: str
    lr: float
    schedule: str
    epochs: int | None
    iterations: int
    iterations_per_epoch: int
    resumed_at: int
    seed: int
    folder: str | None
    precision: str = "float32"
    reproducible: str | None = None
    best: float | None = None
    date: str = ""
    hosts: list[str] = field(default_factory=list)
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    mpi: str = ""
    job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The kernels are ready.

    seconds: from the start of compiling or loading to the end
    kernels: number of newly compiled kernels; 0 if all came from the cache
    """

    seconds: float
    kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration is finished.

    iteration:    its number, from 1
    epoch:        its epoch, from 1
    loss:         mean over the global batch, before the update
    accuracy:     fraction of the global batch classified right, before the update
    lr:           learning rate of its update
    examples:     of its batch, over all ranks
    images_per_s: over all ranks, recently (see :mod:`ringtrain.report.rates`); 0 while unknown
    seconds:      time stamp: since the run started
    """

    iteration: int
    epoch: int
    loss: float
    accuracy: float
    lr: float
    examples: int
    images_per_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """An epoch is finished and, if there is a test part, evaluated.

    iteration:      its last iteration
    epoch:          its number, from 1
    train_loss:     mean over the epoch's examples, each at its own iteration
    train_accuracy: fraction, likewise
    test_loss:      mean over the test examples; None if none were evaluated
    test_accuracy:  fraction; None likewise
    seconds:        time stamp: since the run started
    bytes_sent:     by all ranks together, by the exchange, since the run started; None if they are not counted
    weights_sha256: of all weights; None if ranks have different weights until the next meeting
    """

    iteration: int
    epoch: int
    train_loss: float
    train_accuracy: float
    test_loss: float | None
    test_accuracy: float | None
    seconds: float
    bytes_sent: int | None = None
    weights_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The test part was evaluated within an epoch. Fields as in :class:`EpochEnded`."""

    iteration: int
    epoch: int
    test_loss: float
    test_accuracy: float
    seconds: float
    bytes_sent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A whole checkpoint is on the disk.

    path:      of its file
    iteration: finished iterations that it holds
    seconds:   duration of the write
    """

    path: str
    iteration: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence that the user should read once, in ``text``."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLost:
    """Ranks have died, and the others continue.

    lost:       their numbers in the former world; the numbers of the others may change
    ranks:      the number of ranks now
    replaced:   how many of these were started in place of the dead
    resumed_at: the finished iterations at which training continues
    source:     memory (of a survivor), checkpoint (the newest on the disk), or anew (without any)
    seconds:    by a survivor's clock, from its discovery of the death until training continues
    """

    lost: list[int]
    ranks: int
    replaced: int
    resumed_at: int
    source: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The work and the memory of each rank: lists by rank, of this process, at the end of training.

    images:         trained on by this rank
    updates:        iterations in which the rank had images
    training_s:     seconds of its iterations, without evaluating and saving
    exposed_s:      of these, the time it waited for communication
    bytes_sent:     by the exchange, over any carrier but the MPI's own all-reduce; None if that carried all
    bytes_received: likewise; None if the strategy does not count them
    between_bytes:  in messages to other nodes
    weights_bytes:  of its copy of the weights
    gradient_bytes: of its gradients
    state_bytes:    of its other state: its part of the optimizer's state, buffers; None if not counted
    peak_bytes:     the peak memory of the process, since the run started
    lag:            of ranks that are not in step: kind of lag ("clock", "version") → how much → how often, over all
                    that rank 0 sees; None for ranks in step
    """

    images: list[int]
    updates: list[int]
    training_s: list[float]
    exposed_s: list[float]
    bytes_sent: list[int | None]
    bytes_received: list[int | None]
    between_bytes: list[int | None]
    weights_bytes: list[int]
    gradient_bytes: list[int]
    state_bytes: list[int | None]
    peak_bytes: list[int]
    lag: dict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The last event of a run that an error ended.

    error: its kind, as in :mod:`ringtrain.errors`
    text:  its message
    """

    error: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketExchanged:
    """The cost of one bucket in an iteration on rank 0, the median of the last ones.

    what:      "gradients", "weights", or both
    spans:     names of its first and its last
    nbytes:    of its elements
    algorithm: that exchanges it
    total_s:   from its start to its end
    exposed_s: time that training waited for it
    """

    what: str
    spans: str
    nbytes: int
    algorithm: str
    total_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The traffic of the exchange, at the end of a run.

    iteration:  its last one
    epoch:      the epoch of that iteration
    overlap:    when gradients travel: none, backward or forward
    bytes_sent: by rank 0
    exposed_s:  total time it waited for communication
    buckets:    in the order of the arena, from its end
    seconds:    time stamp: since the run started
    """

    iteration: int
    epoch: int
    overlap: str
    bytes_sent: int
    exposed_s: float
    buckets: tuple[BucketExchanged, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event of a run that came to its end, or was interrupted.

    iterations:      finished in all, those before a resumption included
    epochs:          finished in all
    ranks:           count
    test_accuracy:   fraction, of the last evaluation; None without one
    test_loss:       mean, likewise
    images_per_s:    over all ranks: the median after warm-up, without compiling, evaluating and saving
    weights_sha256:  of all weights; equal on every rank
    seconds:         of this process, from :class:`RunStarted`
    exposed_share:   fraction of the training time in which the loop waited for communication
    reason:          "done" or "interrupted"
    """

    iterations: int
    epochs: int
    ranks: int
    test_accuracy: float | None
    test_loss: float | None
    images_per_s: float
    weights_sha256: str
    seconds: float
    exposed_share: float
    reason: str


Event = (
    RunStarted
    | Compiled
    | Iteration
    | EpochEnded
    | Evaluated
    | CheckpointSaved
    | Note
    | RanksLost
    | Exchanged
    | Ranks
    | Failed
    | Ended
)
# Events about a whole run: obsolete once it is resumed.
OF_THE_END = ("exchange", "ranks", "failed", "end")
# Events after an iteration: its epoch's end, evaluation and checkpoint.
OF_A_MEETING = ("epoch", "evaluation", "checkpoint")

KINDS = {
    RunStarted: "start",
    Compiled: "compiled",
    Iteration: "iteration",
    EpochEnded: "epoch",
    Evaluated: "evaluation",
    CheckpointSaved: "checkpoint",
    Note: "note",
    RanksLost: "lost",
    Exchanged: "exchange",
    Ranks: "ranks",
    Failed: "failed",
    Ended: "end",
}


def record(event: Event) -> dict:
    """Return the event as JSON can hold it: its kind and its fields, numbers that are not finite as None."""
    return {"event": KINDS[type(event)]} | {name: _finite(value) for name, value in asdict(event).items()}


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value
