"""The events in words: pure functions from an event to lines of ASCII, for any kind of terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ringtrain.humanize import plural
from ringtrain.report.events import (
    Compiled,
    Ended,
    EpochEnded,
    Evaluated,
    Exchanged,
    Iteration,
    Ranks,
    RanksLost,
    RunStarted,
)

HEADER_LINES = 12  # at most
FEW_HOSTS = 4  # that are named
BEST = "*"  # marks a test accuracy that is higher than all before
PREPARING = "preparing: kernels are compiled where the cache lacks them"


def header(run: RunStarted) -> list[str]:
    """What is about to be trained, a line a fact: at most ``HEADER_LINES``."""
    facts = [
        ("model", f"{run.model}, {run.parameters:,} parameters, {run.dtype}{_precision(run)}"),
        ("data", f"{run.data}, {_examples(run)}"),
        ("ranks", f"{run.ranks} on {plural(run.nodes, 'node')}{_hosts(run.hosts)}, each on {run.device}"),
        ("strategy", f"{run.strategy}, {_exactness(run.exact)}"),
        ("batch", f"{run.batch:,} over all ranks, {plural(run.iterations_per_epoch, 'iteration')} an epoch"),
        ("optimizer", run.optimizer),
        ("rate", f"{run.lr:g}, {run.schedule}"),
        ("length", _length(run)),
        ("seed", str(run.seed)),
        ("folder", run.folder or "none: nothing is kept"),
        *([("fixed", run.reproducible)] if run.reproducible else []),
    ]
    return [f"ringtrain {run.version}", *(f"  {name:<10} {text}" for name, text in facts)]


def _hosts(hosts: Sequence[str]) -> str:
    """``hosts``: by rank"""
    names = list(dict.fromkeys(hosts))
    return f" ({', '.join(names)})" if 0 < len(names) <= FEW_HOSTS else ""


def _precision(run: RunStarted) -> str:
    return "" if run.precision == "float32" else f", computed in {run.precision}"


def _examples(run: RunStarted) -> str:
    tested = f"{run.test_examples:,} to test with" if run.test_examples else "none to test with"
    return f"{run.train_examples:,} examples to train on, {tested}"


def _exactness(exact: bool) -> str:
    return "exact: equal to training on one rank" if exact else "not exact: differs from training on one rank"


def _length(run: RunStarted) -> str:
    epochs = f"{plural(run.epochs, 'epoch')}, " if run.epochs is not None else ""
    resumed = f", resumed after iteration {run.resumed_at:,}" if run.resumed_at else ""
    return f"{epochs}{plural(run.iterations, 'iteration')}{resumed}"


def compiled(event: Compiled) -> str:
    if event.kernels == 0:
        return f"kernels loaded from the cache in {event.seconds:.1f} s"
    return f"{plural(event.kernels, 'kernel')} compiled in {event.seconds:.1f} s, kept for the next run"


SOURCES = {
    "memory": "from the memory of a survivor",
    "checkpoint": "from the newest checkpoint, as no survivor holds the whole state",
    "anew": "anew, as no survivor holds the whole state and there is no checkpoint",
}


def lost(event: RanksLost) -> str:
    numbers = ", ".join(map(str, event.lost))
    replaced = f", {event.replaced} of them new" if event.replaced else ""
    return (
        f"lost rank{'s' * (len(event.lost) != 1)} {numbers}: {plural(event.ranks, 'rank')}{replaced}, on "
        f"after iteration {event.resumed_at:,} {SOURCES[event.source]}; it took {event.seconds:.2f} s"
    )


def iteration(event: Iteration, run: RunStarted) -> str:
    return (
        f"iteration {event.iteration:,}/{run.iterations:,}, {epoch_of(event.epoch, run)}: "
        f"{_scores(event.loss, event.accuracy)}, rate {event.lr:.4g}, {event.images_per_s:,.0f} images/s"
    )


def weights(event: EpochEnded | Ended) -> str:
    return f"weights sha256 {event.weights_sha256}"


def evaluated(event: Evaluated, best: bool = False) -> str:
    scores = f"loss {event.test_loss:.4f} acc {percent(event.test_accuracy)}{f' {BEST}' if best else ''}"
    return f"iteration {event.iteration:,}  test {scores}  {clock(event.seconds)}"


def _scores(loss: float, accuracy: float) -> str:
    return f"loss {loss:.4f}, accuracy {percent(accuracy)}"


def communication(event: Ended, exchange: Exchanged | None) -> str | None:
    """A line about what it costs that there are several ranks; None of one rank."""
    if event.ranks == 1:
        return None
    line = f"communication: {100 * event.exposed_share:.1f} % of the time"
    buckets = [bucket for bucket in exchange.buckets if bucket.total_s] if exchange is not None else []
    if not buckets:
        return line
    held_s, most = sum(bucket.exposed_s for bucket in buckets), max(buckets, key=lambda bucket: bucket.exposed_s)
    line += f"; an iteration exchanges {_size(sum(bucket.nbytes for bucket in buckets))} and waits "
    line += f"{_milliseconds(held_s)} for that"
    return line if len(buckets) == 1 else f"{line}, {_milliseconds(most.exposed_s)} of it for {most.spans}"


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes / (1 << 10):,.1f} KiB"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def apart(event: Ranks) -> str | None:
    """A line about how far ranks were apart; None where they were not."""
    if not event.lag:
        return None
    lags = [f"{name} lag {_spread(counts)}" for name, counts in event.lag.items() if counts]
    pairs = zip(event.updates, event.training_s, strict=True)
    rates = [f"{count / seconds:.3g}" if seconds else "0" for count, seconds in pairs]
    return f"{', '.join(lags)}; updates a second by rank: {', '.join(rates)}"


def _spread(counts: Mapping[int, int]) -> str:
    """``counts``: lag → how often."""
    lags = [lag for lag, count in sorted(counts.items()) for _ in range(count)]
    return f"{lags[len(lags) // 2]} (median) to {lags[-1]}"


def ended(event: Ended, best: str = "", more: Sequence[str | None] = ()) -> list[str]:
    """The last lines. ``best``: :func:`best_of`, or empty; ``more``: lines about speed and files."""
    lines = [_outcome(event)]
    if event.test_accuracy is not None:
        lines.append(f"test {_scores(event.test_loss, event.test_accuracy)}{best}")
    lines.append(f"{event.images_per_s:,.0f} images/s")
    return [*lines, *filter(None, more)]


def best_of(accuracy: float, epoch: int | None) -> str:
    """What follows the last scores where others were better; ``epoch``: None where an earlier start had them."""
    return f"; best {percent(accuracy)} {f'in epoch {epoch}' if epoch is not None else 'before'} ({BEST})"


def kept(folder: str | None, saved: str | None) -> str | None:
    """Where the run lies, and the path of its newest checkpoint; None where nothing is kept."""
    if folder is None:
        return None
    return f"run folder {folder}{f', newest checkpoint {Path(saved).name}' if saved is not None else ''}"


def finished(event: Ended, longer: str) -> str:
    """Of a run that is done, and is not gone on with. ``longer``: flags by which it would be."""
    epochs = f"{plural(event.epochs, 'epoch')}, " if event.epochs else ""
    length = f"{epochs}{plural(event.iterations, 'iteration')}"
    return f"this run is done ({length}); {longer} lengthens it"


def _outcome(event: Ended) -> str:
    counted = f"{plural(event.iterations, 'iteration')}, {plural(event.epochs, 'epoch')}"
    return f"{event.reason}: {counted} on {plural(event.ranks, 'rank')} in {clock(event.seconds)}"


def epoch_of(number: int, run: RunStarted) -> str:
    if run.epochs is None:
        return f"epoch {number}"
    return f"epoch {number:>{len(str(run.epochs))}}/{run.epochs}"


def percent(fraction: float) -> str:
    return f"{100.0 * fraction:.2f}%"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:05, 2:01:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
