"""The records that a run emits, and their form in ``log.jsonl``.

An event says what happened and knows nothing of who looks at it. In the log it is one object on one line:
``{"event": KIND, field: value, ...}``, KIND as in the table at the end of this file.

Numbering: iterations and epochs are counted from 1, so "iteration 7" means that seven are finished, and a
checkpoint of iteration 7 continues with the eighth. Accuracies are fractions of one. A field of ``seconds``
is wall-clock time; of an :class:`Iteration`, :class:`EpochEnded` or :class:`Evaluated` it is a time stamp:
how long this process has been running since :class:`RunStarted`. A number that is not finite is written as
null: JSON has no word for it.
"""

import math
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """What is about to be trained, and with what.

    version:         of ringtrain
    model:           name of the model
    parameters:      count of trained numbers
    data:            name of the data set
    train_examples:  in one epoch
    test_examples:   0 where the data set has no test part
    strategy:        how ranks stay in step, with its algorithm, such as "allreduce (ring)"
    exact:           whether an iteration equals serial training on the global batch
    ranks, nodes:    counts
    device:          what one rank computes on, in words
    dtype:           of weights and gradients
    precision:       of what lies between: of activations, or of products
    reproducible:    what is fixed so that weights are the same at any number of ranks, in words; None where nothing is
    batch:           examples of one iteration, over all ranks
    optimizer:       in words, with its hyperparameters
    lr:              the learning rate that the schedule starts from, scaling by batch size included
    schedule:        how the learning rate changes, in words
    epochs:          to be done in all; None where iterations alone say when to stop
    iterations:      to be done in all, those before a resumption included
    iterations_per_epoch: the last of an epoch may be smaller
    resumed_at:      iterations that were finished before this process began; 0 for a new run
    seed:            of everything drawn
    folder:          of the run; None where nothing is kept
    best:            the highest test accuracy of the run before it was resumed; None where there was none
    date:            of the start, UTC, in ISO 8601
    hosts:           by rank
    command:         that every rank was started by
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
    """Kernels are ready.

    seconds: from the start of compiling or loading to the end
    kernels: how many were compiled anew; 0 where all came from the cache
    """

    seconds: float
    kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration is finished.

    iteration:    its number, from 1
    epoch:        the epoch it belongs to, from 1
    loss:         mean over the global batch, before the update
    accuracy:     fraction of the global batch that was classified right, before the update
    lr:           learning rate of its update
    examples:     of its batch, over all ranks
    images_per_s: over all ranks, of late (see :mod:`ringtrain.report.rates`); 0 while unknown
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
    """An epoch is finished and, where there is a test part, evaluated.

    iteration:      its last iteration
    epoch:          its number, from 1
    train_loss:     mean over the epoch's examples, each as it was when trained on
    train_accuracy: fraction, likewise
    test_loss:      mean over the test examples; None where none were evaluated
    test_accuracy:  fraction; None likewise
    seconds:        time stamp: since the run started
    bytes_sent:     by all ranks together, by the exchange, since the run started; None where nobody counts them
    weights_sha256: of all weights; None where each rank has its own until the next meeting
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
    """The test part was evaluated, not at the end of an epoch. Fields as in :class:`EpochEnded`."""

    iteration: int
    epoch: int
    test_loss: float
    test_accuracy: float
    seconds: float
    bytes_sent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint lies on the disk, whole.

    path:      of its file
    iteration: finished iterations that it holds
    seconds:   that writing took
    """

    path: str
    iteration: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that the user should read once. text: a sentence."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLost:
    """Ranks have died, and the others go on.

    lost:       their numbers in the world that they were part of; those of the others may change
    ranks:      how many there are now
    replaced:   how many of these were started in place of the dead
    resumed_at: iterations that were finished where training goes on
    source:     what it goes on from: memory, of a survivor; checkpoint, the newest on the disk; anew, without any
    seconds:    by a survivor's clock, from when it met the death, which is after it came, until training goes on
    """

    lost: list[int]
    ranks: int
    replaced: int
    resumed_at: int
    source: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What each rank did and held: lists by rank, of this process, told when training ends.

    images:         that it trained on
    updates:        iterations in which it had any
    training_s:     seconds of its iterations, without evaluating and saving
    exposed_s:      of these, how long it waited for communication
    bytes_sent:     by the exchange, over whatever carries it but the MPI's own all-reduce; None where that was all
    bytes_received: likewise; None where the strategy does not tell
    between_bytes:  in messages to other nodes
    weights_bytes:  of its copy of the weights
    gradient_bytes: of its gradients
    state_bytes:    of what else it keeps: its part of the optimizer's state, buffers; None where nobody tells
    peak_bytes:     the most memory that the process had, since the run started
    lag:            of ranks that are not in step: what lags ("clock", "version") → how much → how often, over all
                    that rank 0 sees; None for those that are
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
    text:  what it says
    """

    error: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketExchanged:
    """What one bucket costs an iteration on rank 0, the median of the last ones.

    what:      "gradients", "weights", or both
    spans:     names of its first and its last
    nbytes:    of its elements
    algorithm: what exchanges it
    total_s:   from its start to its end
    exposed_s: for how long training was held up on account of it
    """

    what: str
    spans: str
    nbytes: int
    algorithm: str
    total_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What was sent for the ranks to stay in step, at the end of a run.

    iteration:  its last one
    epoch:      the epoch that belongs to
    overlap:    when gradients travel: none, backward or forward
    bytes_sent: by rank 0
    exposed_s:  for which it waited for communication, in all
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
    test_accuracy:   fraction, of the last evaluation; None where there was none
    test_loss:       mean, likewise
    images_per_s:    over all ranks: the median after warm-up, without compiling, evaluating and saving
    weights_sha256:  of all weights; equal on every rank
    seconds:         of this process, from :class:`RunStarted`
    exposed_share:   fraction of the training time for which the loop waited for communication
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
# What is told of a whole run: no longer true of one that is resumed.
OF_THE_END = ("exchange", "ranks", "failed", "end")
# What is told after an iteration: of its epoch's end, evaluation and checkpoint.
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
    """The event as JSON can hold it: its kind and its fields, what is not finite as None."""
    return {"event": KINDS[type(event)]} | {name: _finite(value) for name, value in asdict(event).items()}


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value
