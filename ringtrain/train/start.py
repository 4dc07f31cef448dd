"""From flags to a finished run: what ``ringtrain train`` does on every rank.

Rank 0 alone reads checkpoints, writes the run folder and speaks. Whatever can be wrong is found before the first
iteration, by all ranks together (:mod:`ringtrain.train.together`).
"""

import datetime
import hashlib
import os
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import tomli_w

from ringtrain import __version__
from ringtrain.checkpoint import run_folder
from ringtrain.checkpoint.run_folder import RunFolder
from ringtrain.config import TrainConfig
from ringtrain.errors import ConfigError, Interrupted, RingtrainError, StalledError
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.reductions import AUTO
from ringtrain.exchange.tuning_file import Found, find_tuning
from ringtrain.nn.spec import ModelSpec
from ringtrain.ops.base import Ops
from ringtrain.report.events import Compiled, Failed, Note, RunStarted
from ringtrain.report.plots import draw_curves, has_iterations
from ringtrain.report.sinks import JsonLines, Many, Sink
from ringtrain.report.terminal import terminal
from ringtrain.report.trace import write
from ringtrain.resolve import to_table
from ringtrain.train import norms
from ringtrain.train.assemble import (
    Assembly,
    assemble,
    check_replicas,
    hyper_of,
    read_data,
    spread_from_root,
)
from ringtrain.train.device import open_device
from ringtrain.train.ending import Ending
from ringtrain.train.fitting import rehearse
from ringtrain.train.heeding import find_job_end, heed
from ringtrain.train.meter import forget_peak
from ringtrain.train.resume import Origin, check_continuation, decide, find_origin
from ringtrain.train.run import Run
from ringtrain.train.signals import StopFlag, nothing, watching
from ringtrain.train.state import Progress, restore
from ringtrain.train.together import agree, on_root, take_turns, together
from ringtrain.train.tracing import Tracing, path_of, window_of
from ringtrain.transport.base import Transport


def start(transport: Transport, run_file: str | None, flags: dict, stop: StopFlag | None = None) -> None:
    """Train as flags and run file say. Raises RingtrainError, on every rank alike wherever that is possible.

    stop: what has noted signals since the process began, where something has
    """
    with watching() if stop is None else nullcontext(stop) as noted:
        train(transport, run_file, flags, noted)


def train(transport: Transport, run_file: str | None, flags: dict, stop: StopFlag) -> None:
    """The same, of a process that may train again, and keeps its own watch over signals."""
    started = time.perf_counter()
    forget_peak()
    origin = find_origin(transport, run_file, flags)
    config, model = together(transport, lambda: decide(origin, run_file, flags))
    agree(transport, _facts(config, model))
    stop.other = end = find_job_end(transport, config, os.environ)
    data = read_data(config, model, transport)
    heed(transport, stop, origin.words)
    device = open_device(config, transport)
    ops, transport = device.ops, device.transport
    tuning = together(transport, lambda: tuning_of(config, transport))
    run = together(transport, lambda: assemble(config, model, data, transport, ops, stop, tuning.table))
    transport = run.transport  # from here on what ranks do together is watched
    together(transport, lambda: check_continuation(run, origin))

    folder, ending = _make_folder(transport, run, origin)
    sinks = _sinks(transport, folder, origin)
    sink, tracing = Many(sinks), None
    if run.guard is not None:
        run.guard.before_end = ending.failed
    try:
        sink.handle(_header(run, ops, transport, origin, folder))
        for text in filter(None, [*device.notes, tuning.remark, end.words(), *_notes(run, transport, origin)]):
            sink.handle(Note(text=text))
        ending.progress = progress = _first_weights(run, ops, transport, origin)
        _prepare(run, ops, transport, sink, progress)
        heed(transport, stop, origin.words)
        tracing = _tracing(run, transport, folder, progress)
        training = Run(run, ops, transport, progress, sink, folder, started, stop, end, tracing)
        stop.in_haste = training.lifeboat.launch
        training.go()
        ending.done()
    except RingtrainError as error:
        _tell_failure(sink, error)
        ending.failed(error)
        if tracing is not None:
            tracing.end()
        if isinstance(error, (StalledError, Interrupted)):
            folder = None  # no time for curves: the other ranks wait for the end of this one, or a scheduler does
        raise
    except BaseException as error:
        ending.failed(error)
        raise
    finally:
        sink.close()
        stop.in_haste = nothing
        _draw(folder, sinks)
        if run.guard is not None:
            run.guard.close()
    run.exchange.close()


def _tell_failure(sink: Sink, error: RingtrainError) -> None:
    """For the log; one that cannot be written may be the very error."""
    if not isinstance(error, Interrupted):  # which has told of its end
        with suppress(RingtrainError):
            sink.handle(Failed(error=type(error).__name__, text=str(error)))


def _facts(config: TrainConfig, model: ModelSpec) -> dict:
    """What all ranks must hold alike before they open data together."""
    return {
        "ringtrain": __version__,
        **to_table(config),
        "model file sha256": hashlib.sha256(model.text.encode()).hexdigest(),
    }


def tuning_of(config: TrainConfig, transport: Transport) -> Found:
    """What ``auto`` chooses by; collective. Raises UsageError."""
    if config.algorithm == AUTO:
        return find_tuning(transport, config.tuning)
    if config.tuning is not None:
        raise ConfigError(
            f"--tuning {config.tuning} is what `auto` chooses by, but --algorithm is {config.algorithm}: leave one out"
        )
    return Found(None)


# ── run folder and sinks: rank 0's ────────────────────────────────────────────────────────────────────────────
def _make_folder(transport: Transport, run: Assembly, origin: Origin) -> tuple[RunFolder | None, Ending]:
    """The folder, on rank 0; what the run comes to will be written there by whoever knows it."""
    made: list[RunFolder] = []

    def make() -> tuple[str, bool]:
        folder = run_folder.create(origin.folder, run.model.name, datetime.datetime.now(), origin.continues)
        if origin.place is not None:
            folder.supersede(origin.iteration)
        folder.write_text(folder.config, tomli_w.dumps(to_table(run.config)))
        _ending(folder.path, run, transport).running(origin.iteration or 0)
        made.append(folder)
        return str(folder.path), folder.best.exists()

    path, has_best = on_root(transport, make)
    if origin.place is not None and not has_best:
        origin.place["best"] = None  # its file is in another folder, or was of a later iteration: the next one is best
    return made[0] if made else None, _ending(Path(path), run, transport)


def _ending(folder: Path, run: Assembly, transport: Transport) -> Ending:
    return Ending(folder, transport.rank == 0, run.iterations, transport.size)


def _sinks(transport: Transport, folder: RunFolder | None, origin: Origin) -> list[Sink]:
    """The log and the terminal, in that order."""
    if transport.rank != 0:
        return []
    return [JsonLines(folder.log, origin.iteration), terminal(sys.stdout)]


def _tracing(run: Assembly, transport: Transport, folder: RunFolder | None, progress: Progress) -> Tracing | None:
    """What ``--trace`` asks for; collective. The file is there from now on."""
    first, stop = together(transport, lambda: window_of(run.config, progress.iteration))
    if run.config.trace is None:
        return None
    path = path_of(run.config, folder.path) if folder else None
    on_root(transport, lambda: write(path, {}))
    return Tracing(run.worker, transport, first, stop, path)


def _header(run: Assembly, ops: Ops, transport: Transport, origin: Origin, folder) -> RunStarted:
    config, exchange = run.config, run.exchange
    return RunStarted(
        version=__version__,
        model=run.model.name,
        parameters=sum(span.count for span in run.arena.spans if span.parameter.role != "statistic"),
        data=run.data.name,
        train_examples=run.data.train.count,
        test_examples=run.data.test.count if run.data.test else 0,
        strategy=_strategy_words(config, exchange),
        exact=exchange.exact,
        ranks=transport.size,
        nodes=transport.nodes,
        device=ops.describe(),
        dtype=config.dtype,
        precision=config.precision,
        batch=run.sampler.batch,
        optimizer=_optimizer_words(config),
        lr=run.rate.lr,
        schedule=_schedule_words(config),
        epochs=None if config.iterations else run.iterations // run.sampler.iterations_per_epoch,
        iterations=run.iterations,
        iterations_per_epoch=run.sampler.iterations_per_epoch,
        resumed_at=origin.iteration or 0,
        seed=config.seed,
        folder=str(folder.path) if folder else None,
    )


def _notes(run: Assembly, transport: Transport, origin: Origin) -> list[str]:
    """What the user should know besides."""
    notes = [*run.exchange.notes, *(f"passed over: {text}" for text in (origin.found.skipped if origin.found else ()))]
    notes += filter(None, [norms.words(run.config)])
    if transport.local_size > 1 and run.data.held == "private" and not run.config.synthetic:
        notes.append("every rank holds the data set itself: this MPI offers no shared memory of that size")
    if run.guard is not None and run.guard.gap:
        notes.append(f"the guard does not see {run.guard.gap}")
    return notes


def _strategy_words(config: TrainConfig, exchange: Exchange) -> str:
    rounding = "" if config.wire == "none" else f", rounded to {config.wire} on the wire"
    terms = f" {exchange.terms}" if exchange.terms else ""
    return f"{exchange.name}{terms}" + (f" ({config.algorithm}{rounding})" if exchange.all_reduces else "")


def _optimizer_words(config: TrainConfig) -> str:
    corrected = " corrected" if config.momentum_correction else ""
    words = f"{config.optimizer}, momentum {config.momentum:g}{corrected}, weight decay {config.weight_decay:g}"
    words += f", trust {hyper_of(config).trust:g}" if config.optimizer == "lars" else ""
    words += f", trust ratio at most {config.trust_limit:g}" if config.trust_limit else ""
    return words + (f", gradient clipped to {config.clip_norm:g}" if config.clip_norm else "")


def _schedule_words(config: TrainConfig) -> str:
    words = config.lr_policy
    if config.lr_steps:
        words += f" at {', '.join(map(str, config.lr_steps))}"
    return words + (f", {config.warmup} iterations of warm-up" if config.warmup else "")


def _draw(folder: RunFolder | None, sinks: list[Sink]) -> None:
    """Curves are worth having of a run that failed, too. The log is closed: the terminal alone is told."""
    if folder is None or not has_iterations(folder.log):
        return
    problem = draw_curves(folder.log, folder.curves)
    sinks[-1].handle(Note(text=f"no curves: {problem}" if problem else f"the curves are in {folder.curves}"))


# ── the first iteration ───────────────────────────────────────────────────────────────────────────────────────
def _first_weights(run: Assembly, ops: Ops, transport: Transport, origin: Origin) -> Progress:
    """The same weights everywhere: rank 0's, drawn or read, are broadcast, and compared by hash."""
    if origin.place is None:
        spread_from_root(transport, ops, run.arena.weights)
        progress = Progress()
    else:
        progress = restore(run, ops, transport, origin.place, origin.found and origin.found.checkpoint)
    check_replicas(transport, run.arena.hash(ops))
    return progress


def _prepare(run: Assembly, ops: Ops, transport: Transport, sink: Sink, progress: Progress) -> None:
    """Compile kernels before the first iteration, and say how long that took."""
    if progress.iteration >= run.iterations:
        return
    before = ops.compile_stats()  # in this process, of runs that came before this one too
    with run.batches(transport, 0, 1) as batches:
        batch = next(batches)
        seconds = take_turns(transport, lambda: rehearse(run, ops, batch))
    compiled, loaded = (now - then for now, then in zip(ops.compile_stats(), before, strict=True))
    if compiled or loaded:
        sink.handle(Compiled(seconds=seconds, kernels=compiled))
