"""From flags to a finished run: what ``ringtrain train`` does on every rank.

Rank 0 alone reads checkpoints, writes the run folder and speaks. Whatever can be wrong is found before the first
iteration, by all ranks together (:mod:`ringtrain.train.together`).
"""

import datetime
import hashlib
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import tomli_w

from ringtrain import __version__
from ringtrain.checkpoint import files, run_folder
from ringtrain.checkpoint.run_folder import RunFolder
from ringtrain.config import TrainConfig
from ringtrain.errors import ConfigError, Interrupted, RankLostError, RingtrainError, StalledError, UsageError
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.guarded import bare
from ringtrain.exchange.reductions import AUTO
from ringtrain.exchange.tuning_file import Found, find_tuning
from ringtrain.nn.spec import ModelSpec
from ringtrain.ops.base import Ops
from ringtrain.report.events import Compiled, Failed, Note, RunStarted
from ringtrain.report.plots import draw_curves, has_iterations
from ringtrain.report.sinks import JsonLines, Many, Sink, is_log
from ringtrain.report.terminal import terminal
from ringtrain.report.trace import write
from ringtrain.resolve import to_table
from ringtrain.train import norms, reproducible
from ringtrain.train.assemble import (
    Assembly,
    assemble,
    read_data,
    spread_from_root,
)
from ringtrain.train.device import open_device
from ringtrain.train.ending import Ending
from ringtrain.train.fitting import rehearse
from ringtrain.train.heeding import find_job_end, heed
from ringtrain.train.journey import Journey, check_elastic, for_devices
from ringtrain.train.meter import forget_peak
from ringtrain.train.recipe import hyper_of
from ringtrain.train.resume import Origin, check_continuation, decide, find_origin
from ringtrain.train.run import Run
from ringtrain.train.signals import StopFlag, nothing, watching
from ringtrain.train.state import Progress, restore
from ringtrain.train.timed import Timed
from ringtrain.train.together import agree, on_root, take_turns, together
from ringtrain.train.tracing import Tracing, path_of, window_of
from ringtrain.transport.base import Transport


def start(transport: Transport, run_file: str | None, flags: dict, stop: StopFlag | None = None) -> None:
    """Train as flags and run file say. Raises RingtrainError, on every rank alike wherever that is possible.

    stop: what has noted signals since the process began, where something has
    """
    with watching() if stop is None else nullcontext(stop) as noted:
        train(transport, run_file, flags, noted)


def train(
    transport: Transport, run_file: str | None, flags: dict, stop: StopFlag, journey: Journey | None = None
) -> None:
    """The same, of a process that may train again, and keeps its own watch over signals. ``journey``: what outlives a
    world that has lost a rank."""
    alone, journey = journey is not None, journey or Journey()
    forget_peak()
    origin = journey.origin or find_origin(transport, run_file, flags)
    config, model = together(transport, lambda: decide(origin, run_file, flags))
    config = journey.adapted(config)
    agree(transport, _facts(config, model))
    together(transport, lambda: check_elastic(config, transport, alone))
    stop.other = end = find_job_end(transport, config, os.environ)
    data = read_data(config, model, transport)
    heed(transport, stop, origin.words)
    device = open_device(for_devices(config), bare(transport))  # whose guard is made with the run
    ops = device.ops
    reproducible.check_kernels(config, transport, ops)
    tuning = together(transport, lambda: tuning_of(config, transport, bool(journey.lost)))
    with transport.activity.during("preparing the run", limited=True):
        own = lambda: assemble(config, model, data, device.transport, ops, stop, tuning.table)  # noqa: E731
        run = together(transport, own)
    transport.activity.deadline_s = config.deadline_s
    transport = run.transport  # from here on what ranks do together is watched
    together(transport, lambda: check_continuation(run, origin))

    remarks: list[str] = []
    folder = keeper = _make_folder(transport, run, origin, journey, remarks)
    ending = journey.ending
    sinks = _sinks(transport, folder, origin, journey)
    sink, tracing = Many(sinks), None
    if run.guard is not None:
        run.guard.before_end = ending.failed
    try:
        sink.handle(_header(run, ops, transport, origin, folder))
        moved = reproducible.moved(config, ops, origin.place and origin.place["numerics"])
        told = [*device.notes, tuning.remark, moved, end.words(), *remarks, *_notes(run, transport, origin)]
        for text in filter(None, told):
            sink.handle(Note(text=text))
        ending.progress = progress = _first_weights(run, ops, transport, origin)
        _prepare(run, ops, transport, sink, progress)
        heed(transport, stop, origin.words)
        tracing = _tracing(run, transport, folder, progress)
        due = origin.place is not None and origin.place.get("due", False)
        training = Run(run, ops, transport, progress, sink, folder, journey.started, stop, end, tracing, due)
        journey.begin(training)
        stop.in_haste = training.lifeboat.launch
        if journey.news is not None:
            sink.handle(journey.take_news())
        training.go()
        ending.done()
    except RankLostError:
        folder = None  # the others go on, and draw at their end; or all are about to be ended
        raise
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
        if keeper is not None:
            keeper.release()
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


def tuning_of(config: TrainConfig, transport: Transport, after_death: bool = False) -> Found:
    """What ``auto`` chooses by; collective. Raises UsageError, but where ranks are others than the file was for since
    some have died."""
    if config.algorithm == AUTO:
        try:
            return find_tuning(transport, config.tuning)
        except UsageError as error:
            if not after_death:
                raise
            return Found(None, f"without --tuning from here on: {error}")
    if config.tuning is not None:
        raise ConfigError(
            f"--tuning {config.tuning} is what `auto` chooses by, but --algorithm is {config.algorithm}: leave one out"
        )
    return Found(None)


# ── run folder and sinks: rank 0's ────────────────────────────────────────────────────────────────────────────
def _make_folder(transport: Transport, run: Assembly, origin: Origin, journey: Journey, remarks) -> RunFolder | None:
    """The folder, on rank 0. All ranks know of it before it holds a run: what the run comes to will be written there by
    whoever knows it, and survivors of a death go on in it. What the user should know of it is added to ``remarks``."""
    made: list[RunFolder] = []

    def make() -> str:
        with transport.activity.during(f"making run folder {origin.folder or run_folder.RUNS}", limited=True):
            folder = run_folder.create(origin.folder, run.model.name, datetime.datetime.now(), origin.continues)
            remarks.extend(folder.claim(origin.continues))
            made.append(folder)
            return str(folder.path)

    journey.folder, journey.iterations = on_root(transport, make), run.iterations
    journey.ending = Ending(Path(journey.folder), transport.rank == 0, run.iterations, transport.size, journey.lost)
    best = on_root(transport, lambda: _begin(made[0], run, origin, journey.ending, remarks))
    if origin.place is not None:
        origin.place["best"] = best  # None where its file is in another folder, or was of a later iteration
    return made[0] if made else None


def _begin(folder: RunFolder, run: Assembly, origin: Origin, ending: Ending, remarks: list[str]) -> float | None:
    """Write what a run's folder holds from its start. The best accuracy that a checkpoint of it has."""
    _clear(folder, origin, remarks)
    folder.write_text(folder.config, tomli_w.dumps(to_table(run.config)))
    ending.running(origin.iteration or 0)
    return folder.best_so_far()


def _clear(folder: RunFolder, origin: Origin, remarks: list[str]) -> None:
    """Put aside what this run neither goes on with nor should write over."""
    if origin.place is not None and (aside := folder.supersede(origin.iteration)):
        remarks.append(f"put aside, of later iterations or damaged: {', '.join(path.name for path in aside)}")
    if origin.unread and os.path.lexists(folder.config):
        remarks.append(f"{origin.unread}; it is called {files.put_aside(folder.config).name} now")
    if origin.place is None and not is_log(folder.log):
        remarks.append(f"{folder.log} is no log of a run: it is called {files.put_aside(folder.log).name} now")


def _sinks(transport: Transport, folder: RunFolder | None, origin: Origin, journey: Journey) -> list[Sink]:
    """The log and the terminal, in that order."""
    if transport.rank != 0:
        return []
    resumed_at = 0 if origin.iteration is None and journey.lost else origin.iteration  # the log goes on after a death
    again = origin.place is not None and origin.place.get("due", False)
    shown = terminal(sys.stdout)
    with transport.activity.during(f"opening {folder.log}", limited=True):
        log = JsonLines(folder.log, resumed_at, lambda text: shown.handle(Note(text=text)), again)
    return [Timed(log, transport.activity, f"writing {folder.log}"), shown]


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
        reproducible=reproducible.words(config, ops),
    )


def _notes(run: Assembly, transport: Transport, origin: Origin) -> list[str]:
    """What the user should know besides."""
    notes = [*run.exchange.notes, *(f"passed over: {text}" for text in (origin.found.skipped if origin.found else ()))]
    notes += filter(None, [norms.words(run.config), norms.smaller(run.config, run.graph)])
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
    run.replicas.check("at the start")
    return progress


def _prepare(run: Assembly, ops: Ops, transport: Transport, sink: Sink, progress: Progress) -> None:
    """Compile kernels before the first iteration, and say how long that took."""
    if progress.iteration >= run.iterations:
        return
    before = ops.compile_stats()  # in this process, of runs that came before this one too
    with run.batches(transport, 0, 1) as batches, transport.activity.during("compiling kernels"):
        batch = next(batches)
        seconds = take_turns(transport, lambda: rehearse(run, ops, batch))
    compiled, loaded = (now - then for now, then in zip(ops.compile_stats(), before, strict=True))
    if compiled or loaded:
        sink.handle(Compiled(seconds=seconds, kernels=compiled))
