"""The events in words: pure functions from an event to lines of ASCII, for any kind of terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ringtrain.humanize import RATE, plural
from ringtrain.report import events

PREPARING = "preparing the first iteration"
FEW_HOSTS = 4  # that are named
BEST = "*"  # marks a test accuracy that is higher than all before, or such a loss that is lower


def run_header(run: events.RunStarted) -> list[str]:
    """Describe the run at its start, a line a fact."""
    tested = f"{run.test_examples:,} to test with" if run.test_examples else "none to test with"
    exactness = "exact: equal to training on one rank" if run.exact else "not exact: differs from training on one rank"
    resumed = f", resumed after iteration {run.resumed_at:,}" if run.resumed_at else ""
    facts = [
        ("model", _model(run)),
        ("data", f"{run.data}, {run.train_examples:,} examples to train on, {tested}"),
        ("ranks", _ranks(run)),
        ("strategy", f"{run.strategy}, {exactness}"),
        ("batch", f"{run.batch:,} over all ranks, {plural(run.iterations_per_epoch, 'iteration')} an epoch"),
        ("optimizer", run.optimizer),
        ("rate", f"{run.lr:g}, {run.schedule}"),
        ("length", f"{_length(run.epochs, run.iterations)}{resumed}"),
        ("seed", str(run.seed)),
        ("folder", run.folder or "none: nothing is kept"),
        *([("fixed", run.reproducible)] if run.reproducible else []),
    ]
    return [f"ringtrain {run.version}", *(f"  {name:<10} {text}" for name, text in facts)]


def _model(run: events.RunStarted) -> str:
    precision = "" if run.precision == "float32" else f", computed in {run.precision}"
    return f"{run.model}, {run.parameters:,} parameters, {run.dtype}{precision}"


def _ranks(run: events.RunStarted) -> str:
    names = list(dict.fromkeys(run.hosts))
    hosts = f" ({', '.join(names)})" if 0 < len(names) <= FEW_HOSTS else ""
    return f"{run.ranks} on {plural(run.nodes, 'node')}{hosts}, each on {run.device}"


def _length(epochs: int | None, iterations: int) -> str:
    return ", ".join(([plural(epochs, "epoch")] if epochs else []) + [plural(iterations, "iteration")])


def compiled(event: events.Compiled) -> str:
    if event.kernels == 0:
        return f"kernels loaded from the cache in {event.seconds:.1f} s"
    return f"{plural(event.kernels, 'kernel')} compiled in {event.seconds:.1f} s, kept for the next run"


SOURCES = {
    "memory": "from the memory of a survivor",
    "checkpoint": "from the newest checkpoint, as no survivor holds the whole state",
    "anew": "anew, as no survivor holds the whole state and there is no checkpoint",
}


def ranks_lost(event: events.RanksLost) -> str:
    lost = f"{'rank' if len(event.lost) == 1 else 'ranks'} {', '.join(map(str, event.lost))}"
    replaced = f", {event.replaced} of them new" if event.replaced else ""
    return (
        f"lost {lost}: {plural(event.ranks, 'rank')}{replaced}, on after iteration {event.resumed_at:,} "
        f"{SOURCES.get(event.source, event.source)}; it took {event.seconds:.2f} s"
    )


def iteration(event: events.Iteration, run: events.RunStarted) -> str:
    return (
        f"iteration {event.iteration:,}/{run.iterations:,}, {epoch_of(event.epoch, run)}: "
        f"{_scores(event.loss, event.accuracy)}, rate {event.lr:.4g}, {event.images_per_s:,.0f} {RATE}"
    )


def weights(event: events.EpochEnded | events.Ended) -> str:
    return f"weights sha256 {event.weights_sha256}"


def evaluated(event: events.Evaluated, best: bool = False) -> str:
    others = _others(" ", "acc", event.test_accuracy, event.test_metrics)
    mark = f" {BEST}" if best else ""
    apart = "" if event.distance is None else f" apart {event.distance:.3g}"
    return (
        f"iteration {event.iteration:,}  test loss {event.test_loss:.4f}{others}{apart}{mark}  {clock(event.seconds)}"
    )


def _scores(loss: float, accuracy: float | None, metrics: Mapping[str, float | None] | None = None) -> str:
    return f"loss {loss:.4f}{_others(', ', 'accuracy', accuracy, metrics)}"


def _others(separator: str, name: str, accuracy: float | None, metrics: Mapping[str, float | None] | None) -> str:
    scores = [(name, accuracy_percent(accuracy))] if accuracy is not None else []
    scores += [(metric_name(each), metric_value(each, value)) for each, value in (metrics or {}).items()]
    return "".join(f"{separator}{name} {value}" for name, value in scores)


def communication(event: events.Ended, exchanged: events.Exchanged | None) -> str | None:
    """Return a line about the cost of communication; None for one rank."""
    if event.ranks == 1:
        return None
    line = f"communication: {100 * event.exposed_share:.1f} % of the time"
    buckets = [bucket for bucket in exchanged.buckets if bucket.total_s] if exchanged is not None else []
    if not buckets:
        return line
    waited_s, most = sum(bucket.exposed_s for bucket in buckets), max(buckets, key=lambda bucket: bucket.exposed_s)
    size = _size(sum(bucket.nbytes for bucket in buckets))
    line += f"; an exchange of {size} waits {_milliseconds(waited_s)} on average"
    return line if len(buckets) == 1 else line + f", {_milliseconds(most.exposed_s)} of it for {most.spans}"


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes / (1 << 10):,.1f} KiB"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def lag_line(event: events.Ranks) -> str | None:
    """Return a line about the lag between ranks; None if there is none."""
    if not event.lag:
        return None
    lags = [_lag(name, counts) for name, counts in event.lag.items() if counts]
    pairs = zip(event.updates, event.training_s, strict=True)
    rates = [f"{count / seconds:.3g}" if seconds else "0" for count, seconds in pairs]
    return f"{', '.join(lags)}; updates a second by rank: {', '.join(rates)}"


def _lag(name: str, counts: Mapping[int, int]) -> str:
    """Describe a lag. ``counts``: lag → how often"""
    lags = [lag for lag, count in sorted(counts.items()) for _ in range(count)]
    return f"{name} lag {lags[len(lags) // 2]} (median) to {lags[-1]}"


def ended(event: events.Ended, best: str = "", more: Sequence[str | None] = ()) -> list[str]:
    """Return the last lines. ``best``: :func:`best_of`, or empty; ``more``: lines about speed and files."""
    length = (
        f"{plural(event.iterations, 'iteration')}, {plural(event.epochs, 'epoch')} on {plural(event.ranks, 'rank')}"
    )
    lines = [f"{event.reason}: {length} in {clock(event.seconds)}"]
    if event.test_loss is not None:
        scores = _scores(event.test_loss, event.test_accuracy, event.test_metrics)
        lines.append(f"test {scores}{best}")
    return [*lines, f"{event.images_per_s:,.0f} {RATE}", *filter(None, more)]


def best_of(best_by: str, best: float, epoch: int | None) -> str:
    """Return the text after the last scores if earlier ones were better; ``epoch``: None if an earlier
    start had them."""
    value = f"loss {best:.4f}" if best_by == "loss" else accuracy_percent(best)
    return f"; best {value} {'before' if epoch is None else f'in epoch {epoch}'} ({BEST})"


def folder_line(folder: str | None, saved: str | None) -> str | None:
    """Return a line with the run's folder, and the path of its newest checkpoint; None if nothing is kept."""
    if folder is None:
        return None
    checkpoint = "" if saved is None else f", newest checkpoint {Path(saved).name}"
    return f"run folder {folder}{checkpoint}"


def finished(iterations: int, longer: str) -> str:
    """Describe a run that is done and does not continue. ``longer``: the flags that would continue it."""
    return f"this run is done ({plural(iterations, 'iteration')}); {longer} lengthens it"


def epoch_of(number: int, run: events.RunStarted) -> str:
    if run.epochs is None:
        return f"epoch {number}"
    return f"epoch {number:>{len(str(run.epochs))}}/{run.epochs}"


# Metrics by their names in the log: their names for people; the others are themselves.
METRIC_NAMES = {
    "top5_accuracy": "top-5",
    "mean_iou": "mIoU",
    "f1": "F1",
    "iou": "IoU",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
}
FRACTIONS = ("top5_accuracy", "mean_iou", "f1")


def metric_name(name: str) -> str:
    return METRIC_NAMES.get(name, name)


def metric_value(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return accuracy_percent(value) if name in FRACTIONS else f"{value:.4g}"


def accuracy_percent(fraction: float) -> str:
    return f"{100.0 * fraction:.2f}%"


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds: 1:05, 2:01:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
