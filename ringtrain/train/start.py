"""From flags to a finished run: what ``ringtrain train`` does on every rank.

Rank 0 alone reads checkpoints, writes the run folder and speaks. Whatever can be wrong is found before the first
iteration, by all ranks together (:mod:`ringtrain.train.together`).
"""

import datetime
import hashlib
import sys
import time
from pathlib import Path

import tomli_w

from ringtrain import __version__
from ringtrain.checkpoint import run_folder, store
from ringtrain.checkpoint.run_folder import Found, RunFolder
from ringtrain.config import (
    FIXED_ON_RESUME,
    TrainConfig,
    for_continuation,
    parse_toml,
    read_run_file,
    recipe_layer,
    resolve,
    to_table,
)
from ringtrain.data.batches import Batches
from ringtrain.data.dataset import DataSet
from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.nn import spec
from ringtrain.nn.spec import ModelSpec
from ringtrain.ops.base import Ops
from ringtrain.report.events import Compiled, Note, RunStarted
from ringtrain.report.plots import draw_curves
from ringtrain.report.sinks import JsonLines, Many, Sink
from ringtrain.report.terminal import terminal
from ringtrain.train.assemble import Assembly, assemble, check_replicas, open_data, ops_of, spread_from_root
from ringtrain.train.loop import take_turns
from ringtrain.train.run import Run
from ringtrain.train.signals import StopFlag
from ringtrain.train.state import Progress, parameter_shapes, place, restore
from ringtrain.train.together import agree, on_root, together
from ringtrain.transport.base import Transport


def start(transport: Transport, run_file: str | None, flags: dict) -> None:
    """Train as flags and run file say. Raises RingtrainError, on every rank alike wherever that is possible."""
    started = time.perf_counter()
    stop = StopFlag().install()
    found, position = _find_checkpoint(transport, run_file, flags)
    config, model = together(transport, lambda: _decide(run_file, flags, position))
    data = together(transport, lambda: open_data(config, model, transport))
    agree(transport, _facts(config, model, data))
    ops = together(transport, lambda: ops_of(config))
    run = together(transport, lambda: assemble(config, model, data, transport, ops, stop))
    together(transport, lambda: _check_continuation(run, position, found))

    folder = _make_folder(transport, run, position)
    sinks = _sinks(transport, folder, position)
    sink = Many(sinks)
    try:
        sink.handle(_header(run, ops, transport, position, folder))
        for text in _notes(run, transport, found):
            sink.handle(Note(text=text))
        progress = _first_weights(run, ops, transport, position, found)
        _prepare(run, ops, transport, sink, progress)
        Run(run, ops, transport, progress, sink, folder, started).go()
    finally:
        sink.close()
        stop.remove()
        _draw(folder, sinks)
    run.exchange.close()


# ── what is to be done ────────────────────────────────────────────────────────────────────────────────────────
def _find_checkpoint(transport: Transport, run_file, flags: dict) -> tuple[Found | None, dict | None]:
    """The checkpoint to go on from, on rank 0, and what all ranks must know of it."""
    held: list[Found] = []

    def look() -> dict | None:
        given = {**(read_run_file(run_file) if run_file else {}), **flags}
        found = _checkpoint_of(given.get("resume"), given.get("out"))
        held.extend([found] if found else [])
        return found and place(found.checkpoint)

    position = on_root(transport, look)
    return (held[0] if held else None), position


def _checkpoint_of(resume: str | None, out: str | None) -> Found | None:
    if resume is None:
        return None
    if resume != "auto":
        return run_folder.find(resume)
    if out is None:
        raise ConfigError("--resume auto looks for a checkpoint in the run folder: name it with --out")
    folder = RunFolder(out)
    return None if folder.is_empty() else folder.latest()


def _decide(run_file, flags: dict, position: dict | None) -> tuple[TrainConfig, ModelSpec]:
    """Lay the sources of the configuration over one another. A run that is resumed keeps its model file's text."""
    layers = (
        []
        if position is None
        else [("the resumed run", for_continuation(parse_toml(position["config"], "checkpoint")))]
    )
    layers += [(f"run file {run_file}", read_run_file(run_file))] if run_file else []
    layers.append(("flags", flags))
    chosen = resolve(*layers)
    if position is None:
        model = spec.load(chosen.model)
        config = resolve(recipe_layer(model.name, model.recipe), *layers)
    else:
        model = _resumed_model(chosen, position)
        config = chosen
        _check_fixed(config, position)
    return config, model


def _resumed_model(config: TrainConfig, position: dict) -> ModelSpec:
    return spec.parse(position["model"], position["model_name"], f"the model in the checkpoint ({config.model})")


def _check_fixed(config: TrainConfig, position: dict) -> None:
    before = resolve(("checkpoint", parse_toml(position["config"], "checkpoint")))
    for key in FIXED_ON_RESUME:
        was, now = getattr(before, key), getattr(config, key)
        if was != now and not (key == "model" and Path(str(now)).stem == position["model_name"]):
            raise ConfigError(
                f"the run that is resumed has {key} = {was!r}, not {now!r}: it goes on with what it had, so leave "
                "that out; to change it, start a new run"
            )


def _facts(config: TrainConfig, model: ModelSpec, data: DataSet) -> dict:
    return {
        "ringtrain": __version__,
        **to_table(config),
        "model file sha256": hashlib.sha256(model.text.encode()).hexdigest(),
        "data checksum": data.checksum,
    }


def _check_continuation(run: Assembly, position: dict | None, found: Found | None) -> None:
    if position is None:
        return
    if position["data_checksum"] != run.data.checksum:
        raise CheckpointError(
            f"the checkpoint was trained on other data: {position['data_name']!r}, checksum "
            f"{position['data_checksum'][:12]}…, and {run.data.name!r} has {run.data.checksum[:12]}…; give that --data"
        )
    run.sampler.iteration_at(position["examples_seen"])
    if found:
        store.fits(found.checkpoint, parameter_shapes(run.arena), str(found.path))


# ── run folder and sinks: rank 0's ────────────────────────────────────────────────────────────────────────────
def _make_folder(transport: Transport, run: Assembly, position: dict | None) -> RunFolder | None:
    made: list[RunFolder] = []

    def make() -> bool:
        config = run.config
        out = config.out or _folder_of(config.resume)
        folder = run_folder.create(out, run.model.name, datetime.datetime.now(), _continues(config, out))
        if position is not None:
            folder.supersede(position["iteration"])
        folder.write_text(folder.config, tomli_w.dumps(to_table(config)))
        made.append(folder)
        return folder.best.exists()

    has_best = on_root(transport, make)
    if position is not None and not has_best:
        position["best"] = None  # its file is of another folder, or was of a later iteration: the next one is best
    return made[0] if made else None


def _folder_of(resume: str | None) -> str | None:
    """A run that is resumed by its folder's name goes on in that folder."""
    return str(run_folder.folder_of(Path(resume))) if resume not in (None, "auto") and Path(resume).is_dir() else None


def _continues(config: TrainConfig, out: str | None) -> bool:
    """Whether the run in ``out`` is the one that goes on, and not one that happens to be there."""
    if config.resume in (None, "auto"):
        return config.resume == "auto"
    return out is not None and Path(config.resume).resolve().is_relative_to(Path(out).resolve())


def _sinks(transport: Transport, folder: RunFolder | None, position: dict | None) -> list[Sink]:
    """The log and the terminal, in that order."""
    if transport.rank != 0:
        return []
    resumed_at = position["iteration"] if position else None
    return [JsonLines(folder.log, resumed_at), terminal(sys.stdout)]


def _header(run: Assembly, ops: Ops, transport: Transport, position: dict | None, folder) -> RunStarted:
    config, exchange = run.config, run.exchange
    return RunStarted(
        version=__version__,
        model=run.model.name,
        parameters=sum(span.count for span in run.arena.spans if span.parameter.role != "statistic"),
        data=run.data.name,
        train_examples=run.data.train.count,
        test_examples=run.data.test.count if run.data.test else 0,
        strategy=f"{exchange.name} ({config.algorithm})",
        exact=exchange.exact,
        ranks=transport.size,
        nodes=transport.nodes,
        device=ops.describe(),
        dtype=config.dtype,
        batch=run.sampler.batch,
        optimizer=_optimizer_words(config),
        lr=run.rate.lr,
        schedule=_schedule_words(config),
        epochs=None if config.iterations else run.iterations // run.sampler.iterations_per_epoch,
        iterations=run.iterations,
        iterations_per_epoch=run.sampler.iterations_per_epoch,
        resumed_at=position["iteration"] if position else 0,
        seed=config.seed,
        folder=str(folder.path) if folder else None,
    )


def _notes(run: Assembly, transport: Transport, found: Found | None) -> list[str]:
    """What the user should know besides."""
    notes = [f"passed over: {text}" for text in (found.skipped if found else ())]
    if transport.local_size > 1 and run.data.held == "private" and not run.config.synthetic:
        notes.append("every rank holds the data set itself: this MPI offers no shared memory of that size")
    return notes


def _optimizer_words(config: TrainConfig) -> str:
    words = f"{config.optimizer}, momentum {config.momentum:g}, weight decay {config.weight_decay:g}"
    return words + (f", gradient clipped to {config.clip_norm:g}" if config.clip_norm else "")


def _schedule_words(config: TrainConfig) -> str:
    words = config.lr_policy
    if config.lr_steps:
        words += f" at {', '.join(map(str, config.lr_steps))}"
    return words + (f", {config.warmup} iterations of warm-up" if config.warmup else "")


def _draw(folder: RunFolder | None, sinks: list[Sink]) -> None:
    """Curves are worth having of a run that failed, too. The log is closed: the terminal alone is told."""
    if folder is None:
        return
    problem = draw_curves(folder.log, folder.curves)
    sinks[-1].handle(Note(text=f"no curves: {problem}" if problem else f"the curves are in {folder.curves}"))


# ── the first iteration ───────────────────────────────────────────────────────────────────────────────────────
def _first_weights(run: Assembly, ops: Ops, transport: Transport, position: dict | None, found) -> Progress:
    """The same weights everywhere: rank 0's, drawn or read, are broadcast, and compared by hash."""
    if position is None:
        spread_from_root(transport, ops, run.arena.weights)
        progress = Progress()
    else:
        progress = restore(run, ops, transport, position, found and found.checkpoint)
    check_replicas(transport, run.arena.hash(ops))
    return progress


def _prepare(run: Assembly, ops: Ops, transport: Transport, sink: Sink, progress: Progress) -> None:
    """Compile kernels before the first iteration, and say how long that took."""
    if progress.iteration >= run.iterations:
        return
    with Batches(
        run.data.train, run.sampler, transport.rank, transport.size, run.grain, run.augment, run.config.seed,
        start_iteration=0, stop_iteration=1,
    ) as batches:  # fmt: skip
        batch = next(batches)
        seconds = take_turns(transport, lambda: run.worker.rehearse(batch))
    sink.handle(Compiled(seconds=seconds, kernels=ops.compile_stats()[0]))
