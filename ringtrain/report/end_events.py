"""The events at the end of a run: the traffic, the work of each rank, and the outcome."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The work and the memory of each rank: lists by rank, of this process, at the end of training.

    images:         trained on by this rank
    updates:        iterations in which the rank had images
    training_s:     seconds of its iterations, without evaluating and saving
    exposed_s:      of these, the time it waited for communication
    waited_s:       before these, for its examples; None in logs of earlier versions
    bytes_sent:     by the exchange, over any carrier but the MPI's own all-reduce; None if that carried all
    bytes_received: likewise; None if the strategy does not count them
    between_bytes:  in messages to other nodes
    weights_bytes:  of its copy of the weights
    gradient_bytes: of its gradients
    state_bytes:    of its other state: its part of the optimizer's state, buffers; None if not counted
    peak_bytes:     the peak memory of the process, since the run started; empty in logs of earlier versions
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
    peak_bytes: list[int] = field(default_factory=list)
    lag: dict[str, dict[int, int]] | None = None
    waited_s: list[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketExchanged:
    """The cost of one bucket in an iteration on rank 0: means over all iterations.

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
class Failed:
    """The last event of a run that an error ended.

    error: its kind, as in :mod:`ringtrain.errors`
    text:  its message
    """

    error: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event of a run that came to its end, or was interrupted.

    iterations:      finished in all, those before a resumption included
    epochs:          finished in all
    ranks:           count
    test_accuracy:   fraction, of the last evaluation; None without one
    test_loss:       mean, likewise
    test_metrics:    further metrics, likewise: name → value
    images_per_s:    over all ranks: the median after warm-up, without compiling, evaluating and saving
    weights_sha256:  of all weights; equal on every rank
    seconds:         of this process, from :class:`RunStarted`
    exposed_share:   fraction of the training time in which the loop waited for communication; not a number in logs of
                     earlier versions
    reason:          "done", "interrupted", or "early stop": --early-stop ended it
    """

    iterations: int
    epochs: int
    ranks: int
    test_accuracy: float | None
    test_loss: float | None
    images_per_s: float
    weights_sha256: str
    seconds: float
    exposed_share: float = math.nan
    reason: str
    test_metrics: dict[str, float | None] | None = None
