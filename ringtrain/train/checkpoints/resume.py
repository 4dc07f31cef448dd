"""Finds where a run begins: anew, or at a checkpoint. Rank 0 looks; its answer decides for all ranks."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import tomli_w

from ringtrain.config.record import FIXED_ON_RESUME, TrainConfig
from ringtrain.config.resolve import for_continuation, parse_run_file, recipe_layer, resolve
from ringtrain.data.content import difference
from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.exchange.compatibility import check_options, without_former
from ringtrain.nn import spec
from ringtrain.nn.spec import ModelSpec
from ringtrain.storage import files
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder import run_folder
from ringtrain.storage.run_folder.run_folder import FoundCheckpoint, RunFolder
from ringtrain.train import texts
from ringtrain.train.agree import on_root
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.recipe import length_of
from ringtrain.train.assembly.reproducible import numerics_of
from ringtrain.train.checkpoints.state import SUMS, parameter_shapes, place
from ringtrain.train.options import AUTO, RunOptions, is_checkpoint
from ringtrain.transport.base import Transport


@dataclass(slots=True, kw_only=True)
class Origin:
    """place:     the facts of the checkpoint that every rank needs; None where the run begins anew
    folder:    of the run; None: a new one, with a name of its own
    continues: whether the folder's run is the one that goes on, so that it may be there already
    config:    the configuration that is continued, as TOML; None where there is none. Its ``resume`` says
               what the run was begun with
    found:     the checkpoint itself, on rank 0
    """

    place: dict | None = None
    folder: str | None = None
    continues: bool = False
    config: str | None = None
    found: FoundCheckpoint | None = field(default=None, compare=False)

    @property
    def iteration(self) -> int | None:
        return self.place and self.place["iteration"]

    @property
    def words(self) -> str:
        """Where a run that ends before its first iteration goes on."""
        if self.place is None:
            return texts.NO_CHECKPOINT()
        return texts.CHECKPOINT_UNCHANGED(iteration=self.iteration)

    def as_json(self) -> dict:
        """The origin without the checkpoint, for other ranks: JSON-able."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "found"}


def find_origin(transport: Transport, options: RunOptions) -> Origin:
    """Look for the checkpoint that the options ask for. Collective."""
    seen: list[Origin] = []

    def look() -> dict:
        given = options.checked().config
        with transport.activity.holds_gil(f"reading checkpoint {given.resume} of {given.out or 'a new run folder'}"):
            seen.append(_origin_of(given.resume, given.out, options.checkpoint))
        return seen[0].as_json()

    told = on_root(transport, look)
    return seen[0] if seen else Origin(**told)


def restart_origin(folder: str | None, options: RunOptions) -> Origin:
    """Where a run goes on whose state died with its ranks: at its newest good checkpoint, or as it began, in the folder
    that it has, if it had come so far. Raises CheckpointError."""
    given = options.checked().config
    if folder is None:
        return _origin_of(given.resume, given.out, options.checkpoint)
    if given.resume in (None, AUTO) or not RunFolder(folder).is_empty():
        return _gone_on(RunFolder(folder), options.checkpoint)
    begun = _origin_of(given.resume, folder, given.resume)
    begun.continues = True
    return begun


def _origin_of(resume: str | None, out: str | None, named: str | None) -> Origin:
    """``named``: as :attr:`RunOptions.checkpoint`, which is ``resume`` itself unless that is `auto`."""
    if resume is None:
        return Origin(folder=out)
    if resume == AUTO:
        return _newest(out, named)
    own = run_folder.run_folder_of(Path(resume)) if Path(resume).is_dir() else None
    folder = out or (own and str(own))
    if folder is not None:
        RunFolder(folder).check_idle()
        if _began_so(RunFolder(folder), resume):
            return _begun(RunFolder(folder), resume)
    found = run_folder.find_checkpoint(resume)
    return _continued(found, folder, folder is not None and _lies_in(found.path, folder))


def _newest(out: str | None, named: str | None) -> Origin:
    """For a job that is started again and again by the same command: the folder may be empty, or half made."""
    if out is None:
        raise ConfigError(texts.AUTO_WITHOUT_OUT())
    folder = RunFolder(out)
    folder.check_idle()
    return _gone_on(folder, named)


def _gone_on(folder: RunFolder, named: str | None) -> Origin:
    if folder.is_empty():
        return _begun(folder, named)
    return _continued(folder.latest(), str(folder.path), True)


def _begun(folder: RunFolder, named: str | None) -> Origin:
    """A run that has no checkpoint yet begins as it began: at the checkpoint that is named, or that its configuration
    names; anew where that is none, or one of this folder, which is gone. It keeps the configuration that it began so
    with."""
    config, _ = config_of(folder)
    before = _source_in(config)
    source = named or before
    if source is None or _lies_in(Path(source), str(folder.path)):
        return Origin(folder=str(folder.path), continues=True, config=config)
    begun = _continued(_found_at(source, folder), str(folder.path), True)
    same = before is not None and Path(before) == Path(source)
    begun.config = config if same else _beginning_at(source, begun.config)
    return begun


def _found_at(source: str, folder: RunFolder) -> FoundCheckpoint:
    try:
        return run_folder.find_checkpoint(source)
    except CheckpointError as error:
        raise CheckpointError(texts.NOTHING_TO_BEGIN_AT(folder=folder.path, source=source, error=error)) from None


def _began_so(folder: RunFolder, resume: str) -> bool:
    """Whether the folder is of a start with the same ``resume`` elsewhere, which left no checkpoint here."""
    before = _source_in(config_of(folder)[0])
    same = before is not None and Path(before) == Path(resume)
    return same and not _lies_in(Path(resume), str(folder.path)) and folder.is_empty()


def _source_in(config: str | None) -> str | None:
    resume = parse_run_file(config, "it").get("resume") if config else None
    return resume if is_checkpoint(resume) else None


def _beginning_at(source: str, config: str) -> str:
    return tomli_w.dumps({**parse_run_file(config, texts.FORMER_RUN()), "resume": source})


def config_of(folder: RunFolder) -> tuple[str | None, str]:
    """(the configuration of the run that has this folder; why what lies in its place is none). To find none is nothing
    to end for: what this start is told is there besides."""
    try:
        with os.fdopen(files.open_regular(folder.config, os.O_RDONLY), encoding="utf-8") as file:
            text = file.read()
        resolve(("it", parse_run_file(text, "it")))
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return None, texts.NOT_A_CONFIG(path=folder.config, why=why)
    return text, ""


def _continued(found: FoundCheckpoint, folder: str | None, continues: bool) -> Origin:
    known, config = place(found.checkpoint), found.checkpoint.config
    return Origin(place=known, folder=folder, continues=continues, config=config, found=found)


def _lies_in(path: Path, folder: str) -> bool:
    return path.resolve().is_relative_to(Path(folder).resolve())


def resolve_run(origin: Origin, options: RunOptions) -> tuple[TrainConfig, ModelSpec]:
    """Lay the sources of the configuration over one another. A run that goes on keeps the network it has. Raises
    ConfigError for options that do not go together."""
    config, model = _laid(origin, options.checked().layers)
    check_options(config)
    return config, model


def _laid(origin: Origin, own: Sequence[tuple[str, dict]]) -> tuple[TrainConfig, ModelSpec]:
    before = parse_run_file(origin.config, texts.FORMER_RUN()) if origin.config else {}
    given = {key: value for _, values in own for key, value in values.items()}
    begun = _beginning(origin, before)
    layers = [(texts.FORMER_RUN(), without_former(for_continuation(before), given)), *own, *begun]
    chosen = resolve(*layers)
    if origin.place is None:
        model = spec.load_model(chosen.model)
        return resolve(recipe_layer(model.name, model.recipe), *layers), model
    model = spec.parse_model(origin.place["model"], origin.place["model_name"], texts.THE_MODEL())
    if any("model" in values for _, values in own):
        _check_model(model, spec.load_model(chosen.model), chosen.model)
    _check_fixed(resolve((texts.FORMER_RUN(), before)), chosen)
    return chosen, model


def _beginning(origin: Origin, before: dict) -> list[tuple[str, dict]]:
    """In its folder's configuration a run keeps what it was begun with, whatever a later start is told: until there is
    a checkpoint, the next one finds it there."""
    kept = {"resume": before["resume"]} if origin.continues and is_checkpoint(before.get("resume")) else {}
    return [(texts.FORMER_RUN(), kept)]


def _check_model(held: ModelSpec, named: ModelSpec, source: str) -> None:
    if (held.nodes, held.input) != (named.nodes, named.input):
        raise CheckpointError(texts.OTHER_MODEL(source=source, model=held.name))


def _check_fixed(before: TrainConfig, now: TrainConfig) -> None:
    for key in FIXED_ON_RESUME:
        if getattr(before, key) != getattr(now, key):
            raise ConfigError(texts.FIXED(key=key, before=getattr(before, key), now=getattr(now, key)))
    if before.reproducible:
        _check_numerics(numerics_of(before), numerics_of(now))


def _check_numerics(before: Mapping, now: Mapping) -> None:
    for key in before:
        if before[key] != now[key]:
            raise ConfigError(texts.FIXED_BITS(key=key, before=before[key], now=now[key]))


def _check_length(iterations: int, finished: int, config: TrainConfig) -> None:
    if iterations < finished:
        raise ConfigError(texts.FINISHED_MORE(finished=finished, iterations=iterations, given=length_of(config)))


def check_continuation(run: Assembly, origin: Origin) -> None:
    """Raises CheckpointError where the checkpoint does not go on with these data or this network."""
    if origin.place is None:
        return
    _check_length(run.iterations, origin.place["iteration"], run.config)
    run.exchange.owned_state.check_names(origin.place["slots"])
    other = difference(origin.place["data_checksum"], run.data.checksum)
    if other:
        names = {"before": origin.place["data_name"], "now": run.data.name}
        raise CheckpointError(texts.OTHER_DATA(difference=other, **names))
    if origin.found:
        store.check_parameters(origin.found.checkpoint, parameter_shapes(run.arena), str(origin.found.path))
        store.check_resumable(origin.found.checkpoint, SUMS, str(origin.found.path))
    if run.sampler.iteration_at(origin.place["examples_seen"]) != origin.place["iteration"]:
        found = {"iteration": origin.place["iteration"], "seen": origin.place["examples_seen"]}
        raise CheckpointError(texts.OTHER_POSITION(batch=run.sampler.batch, **found))
