"""The records that a run emits, and their form in ``log.jsonl``.

An event does not depend on its readers. In the log it is one object on one line:
``{"event": KIND, field: value, ...}``, KIND as named with each class below.

Numbering: iterations and epochs are counted from 1, so "iteration 7" means that seven are finished, and a
checkpoint of iteration 7 continues with the eighth. Accuracies are fractions of one. A field ``seconds``
is wall-clock time; of an :class:`Iteration`, :class:`EpochEnded` or :class:`Evaluated` it is a time stamp:
the time since :class:`RunStarted` of this process. A number that is not finite is written as null: JSON has no
word for it.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import dataclass_transform


@dataclass(frozen=True, slots=True)
class Event:
    """A record of a run."""


KINDS: dict[type[Event], str] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def of_kind(kind: str):
    """Return a decorator, which makes a class of events: a frozen record with this ``event`` in the log."""

    def decorate(event):
        event = dataclass(frozen=True, slots=True, kw_only=True)(event)
        KINDS[event] = kind
        return event

    return decorate


@of_kind("start")
class RunStarted(Event):
    """The start of a run: the model, the data and the settings."""

    version: str  # of ringtrain
    model: str  # name of the model
    parameters: int  # count of trained numbers
    data: str  # name of the data set
    train_examples: int  # in one epoch
    test_examples: int  # 0 if the data set has no test part
    strategy: str  # how ranks stay in step, with its algorithm, such as "allreduce (ring)"
    exact: bool  # whether an iteration equals serial training on the global batch
    ranks: int  # count
    nodes: int  # count
    device: str  # the device of one rank, in words
    dtype: str  # of weights and gradients
    batch: int  # examples of one iteration, over all ranks
    optimizer: str  # in words, with its hyperparameters
    lr: float  # the schedule's initial learning rate, scaling by batch size included
    schedule: str  # how the learning rate changes, in words
    epochs: int | None  # total; None if iterations alone set the end
    iterations: int  # total, those before a resumption included
    iterations_per_epoch: int  # the last of an epoch may be smaller
    resumed_at: int  # iterations finished before this process began; 0 for a new run
    seed: int  # of all random numbers
    folder: str | None  # of the run; None if nothing is kept
    precision: str = "float32"  # of activations, or of products
    # what is fixed so that weights are the same at any number of ranks, in words; None if nothing is
    reproducible: str | None = None
    best: float | None = None  # the best test accuracy, or loss, of the run before it was resumed; None without one
    loss: str = "ce"  # its name
    metrics: list[str] = field(default_factory=list)  # names of the metrics of an evaluation, beside loss and accuracy
    accuracy: bool = True  # whether the loss counts correct elements
    best_by: str = "accuracy"  # "accuracy" or "loss"
    plugins: dict[str, str] = field(default_factory=dict)  # path → sha256 of each --plugin
    date: str = ""  # of the start, UTC, in ISO 8601
    hosts: list[str] = field(default_factory=list)  # by rank
    command: str = ""  # that started every rank
    versions: dict[str, str] = field(default_factory=dict)  # of Python and packages: name → version
    mpi: str = ""  # library, version, thread level
    job: str | None = None  # number of the batch job; None outside of one
    # the commit of a script's folder, with "-dirty" if files have changed; None outside of a repository
    git: str | None = None


@of_kind("compiled")
class Compiled(Event):
    """The kernels are ready."""

    seconds: float  # from the start of compiling or loading to the end
    kernels: int  # number of newly compiled kernels; 0 if all came from the cache


@of_kind("iteration")
class Iteration(Event):
    """One iteration is finished."""

    iteration: int  # its number, from 1
    epoch: int  # its epoch, from 1
    loss: float  # mean over the global batch, before the update
    # fraction of the global batch classified right, before the update; None of a loss that counts none
    accuracy: float | None
    lr: float  # learning rate of its update
    examples: int  # of its batch, over all ranks
    images_per_s: float  # over all ranks, recently (see :mod:`ringtrain.report.rates`); 0 while unknown
    seconds: float  # time stamp: since the run started
    # for which rank 0 has waited for communication, since the iteration before; None in logs of earlier versions
    exposed_s: float | None = None


@of_kind("epoch")
class EpochEnded(Event):
    """An epoch is finished and, if there is a test part, evaluated."""

    iteration: int  # its last iteration
    epoch: int  # its number, from 1
    train_loss: float  # mean over the epoch's examples, each at its own iteration
    train_accuracy: float | None  # fraction, likewise; None of a loss that counts nothing correct
    test_loss: float | None  # mean over the test examples; None if none were evaluated
    test_accuracy: float | None  # fraction; None likewise
    seconds: float  # time stamp: since the run started
    # by all ranks together, by the exchange, since the run started; None if they are not counted
    bytes_sent: int | None = None
    weights_sha256: str | None = None  # of all weights; None if ranks have different weights until the next meeting
    # further metrics of the test examples: name → value, None for one that is not defined
    test_metrics: dict[str, float | None] | None = None
    # of the ranks' weights from their mean, sqrt(mean over ranks of |own - mean|²) / |mean|; None where ranks do
    # not differ
    distance: float | None = None


@of_kind("evaluation")
class Evaluated(Event):
    """The test part was evaluated within an epoch. Fields as in :class:`EpochEnded`."""

    iteration: int
    epoch: int
    test_loss: float
    test_accuracy: float | None
    seconds: float
    bytes_sent: int | None = None
    test_metrics: dict[str, float | None] | None = None
    distance: float | None = None


@of_kind("checkpoint")
class CheckpointSaved(Event):
    """A whole checkpoint is on the disk."""

    path: str  # of its file
    iteration: int  # finished iterations that it holds
    seconds: float  # duration of the write


@of_kind("note")
class Note(Event):
    """A sentence that the user should read once, in ``text``; ``lines``: what belongs to it, for the log alone."""

    text: str
    lines: list[str] | None = None


@of_kind("lost")
class RanksLost(Event):
    """Ranks have died, and the others continue."""

    lost: list[int]  # their numbers in the former world; the numbers of the others may change
    ranks: int  # the number of ranks now
    replaced: int  # how many of these were started in place of the dead
    resumed_at: int  # the finished iterations at which training continues
    source: str  # memory (of a survivor), checkpoint (the newest on the disk), or anew (without any)
    seconds: float  # by a survivor's clock, from its discovery of the death until training continues


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketExchanged:
    """The cost of one bucket in an iteration on rank 0: means over all iterations."""

    what: str  # "gradients", "weights", or both
    spans: str  # names of its first and its last
    nbytes: int  # of its elements
    algorithm: str  # that exchanges it
    total_s: float  # from its start to its end
    exposed_s: float  # time that training waited for it


@of_kind("exchange")
class Exchanged(Event):
    """The traffic of the exchange, at the end of a run."""

    iteration: int  # its last one
    epoch: int  # the epoch of that iteration
    overlap: str  # when gradients travel: none, backward or forward
    bytes_sent: int  # by rank 0
    exposed_s: float  # total time it waited for communication
    buckets: tuple[BucketExchanged, ...]  # in the order of the arena, from its end
    seconds: float  # time stamp: since the run started


@of_kind("ranks")
class Ranks(Event):
    """The work and the memory of each rank: lists by rank, of this process, at the end of training."""

    images: list[int]  # trained on by this rank
    updates: list[int]  # iterations in which the rank had images
    training_s: list[float]  # seconds of its iterations, without evaluating and saving
    exposed_s: list[float]  # of these, the time it waited for communication
    # by the exchange, over any carrier but the MPI's own all-reduce; None if that carried all
    bytes_sent: list[int | None]
    bytes_received: list[int | None]  # likewise; None if the strategy does not count them
    between_bytes: list[int | None]  # in messages to other nodes
    weights_bytes: list[int]  # of its copy of the weights
    gradient_bytes: list[int]  # of its gradients
    state_bytes: list[int | None]  # of its other state: its part of the optimizer's state, buffers; None if not counted
    # the peak memory of the process, since the run started; empty in logs of earlier versions
    peak_bytes: list[int] = field(default_factory=list)
    # of ranks that are not in step: kind of lag ("clock", "version") → how much → how often, over all that rank 0
    # sees; None for ranks in step
    lag: dict[str, dict[int, int]] | None = None
    waited_s: list[float] | None = None  # before its iterations, for its examples; None in logs of earlier versions


@of_kind("failed")
class Failed(Event):
    """The last event of a run that an error ended."""

    error: str  # its kind, as in :mod:`ringtrain.errors`
    text: str  # its message


@of_kind("end")
class Ended(Event):
    """The last event of a run that came to its end, or was interrupted."""

    iterations: int  # finished in all, those before a resumption included
    epochs: int  # finished in all
    ranks: int  # count
    test_accuracy: float | None  # fraction, of the last evaluation; None without one
    test_loss: float | None  # mean, likewise
    images_per_s: float  # over all ranks: the median after warm-up, without compiling, evaluating and saving
    weights_sha256: str  # of all weights; equal on every rank
    seconds: float  # of this process, from :class:`RunStarted`
    # fraction of the training time in which the loop waited for communication; not a number in logs of earlier
    # versions
    exposed_share: float = math.nan
    reason: str  # "done", "interrupted", or "early stop": --early-stop ended it
    test_metrics: dict[str, float | None] | None = None  # further metrics, of the last evaluation: name → value


# Events about a whole run: obsolete once it is resumed.
OF_THE_END = ("exchange", "ranks", "failed", "end")
# Events after an iteration: its epoch's end, evaluation and checkpoint.
OF_A_SYNC_POINT = ("epoch", "evaluation", "checkpoint", "weights")


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
