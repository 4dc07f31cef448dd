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

from ringtrain.report.end_events import Ended, Exchanged, Failed, Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpeed:
    """The prediction of a run by `ringtrain plan`: with this strategy and algorithm, which is empty on one rank.

    step_s:       of an iteration
    exposed_s:    of these, what exchanges add
    images_per_s: over all ranks
    """

    strategy: str
    algorithm: str
    step_s: float
    exposed_s: float
    images_per_s: float


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
    best:            the best test accuracy, or loss, of the run before it was resumed; None without one
    best_by:         "accuracy" or "loss"
    loss:            its name
    metrics:         names of the metrics of an evaluation, beside loss and accuracy
    accuracy:        whether the loss counts correct elements
    plugins:         path → sha256 of each --plugin
    date:            of the start, UTC, in ISO 8601
    hosts:           by rank
    command:         that started every rank
    versions:        of Python and packages: name → version
    mpi:             library, version, thread level
    job:             number of the batch job; None outside of one
    predicted:       its speed in the plan of --plan; None without
    git:             the commit of a script's folder, with "-dirty" if files have changed; None outside of a repository
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
    loss: str = "ce"
    metrics: list[str] = field(default_factory=list)
    accuracy: bool = True
    best_by: str = "accuracy"
    plugins: dict[str, str] = field(default_factory=dict)
    date: str = ""
    hosts: list[str] = field(default_factory=list)
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    mpi: str = ""
    job: str | None = None
    predicted: PredictedSpeed | None = None
    git: str | None = None


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
    accuracy:     fraction of the global batch classified right, before the update; None of a loss that counts none
    lr:           learning rate of its update
    examples:     of its batch, over all ranks
    images_per_s: over all ranks, recently (see :mod:`ringtrain.report.rates`); 0 while unknown
    seconds:      time stamp: since the run started
    exposed_s:    for which rank 0 has waited for communication, since the iteration before; None in logs of earlier
                  versions
    """

    iteration: int
    epoch: int
    loss: float
    accuracy: float | None
    lr: float
    examples: int
    images_per_s: float
    seconds: float
    exposed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """An epoch is finished and, if there is a test part, evaluated.

    iteration:      its last iteration
    epoch:          its number, from 1
    train_loss:     mean over the epoch's examples, each at its own iteration
    train_accuracy: fraction, likewise; None of a loss that counts nothing correct
    test_loss:      mean over the test examples; None if none were evaluated
    test_accuracy:  fraction; None likewise
    test_metrics:   further metrics of the test examples: name → value, None for one that is not defined
    seconds:        time stamp: since the run started
    bytes_sent:     by all ranks together, by the exchange, since the run started; None if they are not counted
    distance:       of the ranks' weights from their mean, sqrt(mean over ranks of |own - mean|²) / |mean|; None where
                    ranks do not differ
    weights_sha256: of all weights; None if ranks have different weights until the next meeting
    """

    iteration: int
    epoch: int
    train_loss: float
    train_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    seconds: float
    bytes_sent: int | None = None
    weights_sha256: str | None = None
    test_metrics: dict[str, float | None] | None = None
    distance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The test part was evaluated within an epoch. Fields as in :class:`EpochEnded`."""

    iteration: int
    epoch: int
    test_loss: float
    test_accuracy: float | None
    seconds: float
    bytes_sent: int | None = None
    test_metrics: dict[str, float | None] | None = None
    distance: float | None = None


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
    """A sentence that the user should read once, in ``text``; ``lines``: what belongs to it, for the log alone."""

    text: str
    lines: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHashed:
    """The weights after an iteration of a reproducible script.

    iteration, epoch: as of :class:`Iteration`
    weights_sha256:   of all parameters and buffers; equal on every rank
    """

    iteration: int
    epoch: int
    weights_sha256: str


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


Event = (
    RunStarted
    | Compiled
    | Iteration
    | EpochEnded
    | Evaluated
    | CheckpointSaved
    | Note
    | WeightsHashed
    | RanksLost
    | Exchanged
    | Ranks
    | Failed
    | Ended
)
# Events about a whole run: obsolete once it is resumed.
OF_THE_END = ("exchange", "ranks", "failed", "end")
# Events after an iteration: its epoch's end, evaluation and checkpoint.
OF_A_SYNC_POINT = ("epoch", "evaluation", "checkpoint", "weights")

KINDS = {
    RunStarted: "start",
    Compiled: "compiled",
    Iteration: "iteration",
    EpochEnded: "epoch",
    Evaluated: "evaluation",
    CheckpointSaved: "checkpoint",
    Note: "note",
    WeightsHashed: "weights",
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
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_better(best_by: str, value: float, before: float | None) -> bool:
    """Whether a test accuracy or loss is better than the best one before."""
    return before is None or (value < before if best_by == "loss" else value > before)
