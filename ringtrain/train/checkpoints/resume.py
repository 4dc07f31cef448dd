"""Finds the start of a run: anew, or at a checkpoint. Rank 0 looks; its answer decides for all ranks."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import tomli_w

from ringtrain import parsing
from ringtrain.config.record import ModelConfig, TrainConfig, options_that
from ringtrain.config.resolve import for_continuation, parse_run_file, recipe_layer, resolve, without_removed
from ringtrain.data.batches.order import FULL
from ringtrain.data.content import difference
from ringtrain.errors import CheckpointError, ConfigError
from ringtrain.exchange.compatibility import check_options, without_former
from ringtrain.nn import spec
from ringtrain.nn.head import with_classes
from ringtrain.nn.losses import make_loss
from ringtrain.nn.spec import ModelSpec
from ringtrain.storage import files
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder import run_folder
from ringtrain.storage.run_folder.run_folder import FoundCheckpoint, RunFolder
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.recipe import best_by_of, iterations_of, length_of, rate_of
from ringtrain.train.checkpoints.state import SUMS, common_facts, parameter_shapes
from ringtrain.train.options import AUTO, RunOptions, checkpoint_in
from ringtrain.transport.agree import keep_on_root
from ringtrain.transport.base import Transport

FORMER_RUN = "the run that goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The start of a run."""

    facts: dict | None = None  # the :func:`common_facts` of the checkpoint; None for a run that begins anew
    folder: str | None = None  # of the run; None: a new one, with a name of its own
    continues: bool = False  # whether the folder's run goes on, so that the folder may exist
    # the configuration of the run that goes on, as TOML, with its first ``resume``; None for a new run
    config: str | None = None
    stored: FoundCheckpoint | None = field(default=None, compare=False)  # the checkpoint itself, on rank 0

    @property
    def iteration(self) -> int | None:
        return self.facts["iteration"] if self.facts else None

    @property
    def due(self) -> bool:
        """Whether evaluation and checkpoint of its iteration are still to be made."""
        return self.facts is not None and self.facts.get("due", False)

    @property
    def words(self) -> str:
        """The state of a run that stops before its first iteration."""
        if self.facts is None:
            return "there is no checkpoint of it yet"
        return f"its checkpoint of iteration {self.iteration} is as it was"

    def as_json(self) -> dict:
        """The origin without the checkpoint, for other ranks: JSON-able."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "stored"}


def find_origin(transport: Transport, options: RunOptions) -> Origin:
    """Look for the checkpoint of the options. Collective."""

    def look() -> tuple[Origin, dict]:
        config = options.checked()
        with transport.activity.holds_gil(
            f"reading checkpoint {config.run.resume} of {config.run.out or 'a new run folder'}"
        ):
            origin = _origin_of(config.run.resume, config.run.out, options.checkpoint)
        return origin, origin.as_json()

    origin, values = keep_on_root(transport, look)
    return origin or Origin(**values)


def restart_origin(folder: str | None, options: RunOptions) -> Origin:
    """The origin of a run whose state died with its ranks: its newest good checkpoint, or its first start, in its
    folder if it had one. Raises CheckpointError."""
    config = options.checked()
    if folder is None:
        return _origin_of(config.run.resume, config.run.out, options.checkpoint)
    if checkpoint_in(config.run.resume) is None or not RunFolder(folder).is_empty():
        return _origin_in(RunFolder(folder), options.checkpoint)
    return replace(_origin_of(config.run.resume, folder, config.run.resume), continues=True)


def _origin_of(resume: str | None, out: str | None, named: str | None) -> Origin:
    """``named``: :attr:`RunOptions.checkpoint`, which is ``resume`` itself unless that is `auto`."""
    if resume is None:
        return Origin(folder=out)
    if resume == AUTO:
        if out is None:
            raise ConfigError("--resume auto looks for a checkpoint in the run folder: name it with --out")
        run = RunFolder(out)
        run.check_idle()
        return _origin_in(run, named)
    parent = run_folder.run_folder_of(Path(resume)) if Path(resume).is_dir() else None
    folder = out or (str(parent) if parent else None)
    if folder is not None:
        run = RunFolder(folder)
        run.check_idle()
        before = _checkpoint_of(config_of(run)[0])
        same = before is not None and Path(before) == Path(resume)
        if same and not _lies_in(resume, folder) and run.is_empty():  # of a start there, and without a checkpoint yet
            return _first_origin(run, resume)
    stored = run_folder.find_checkpoint(resume)
    return _continued(stored, folder, folder is not None and _lies_in(stored.path, folder))


def _origin_in(folder: RunFolder, named: str | None) -> Origin:
    """The origin of a run that one command starts again and again: its folder may be empty, or half made."""
    if folder.is_empty():
        return _first_origin(folder, named)
    return _continued(folder.latest(), str(folder.path), True)


def _first_origin(folder: RunFolder, named: str | None) -> Origin:
    """The origin of a run without a checkpoint: the one of its first start, which is the checkpoint ``named`` or that
    of its configuration. A checkpoint of this folder is gone; then it begins anew. It keeps its configuration."""
    config, _ = config_of(folder)
    before = _checkpoint_of(config)
    source = named or before
    if source is None or _lies_in(source, folder.path):
        return Origin(folder=str(folder.path), continues=True, config=config)
    try:
        stored = run_folder.find_checkpoint(source)
    except CheckpointError as error:
        raise CheckpointError(f"{folder.path} has no checkpoint yet, and is to begin at {source}: {error}") from None
    origin = _continued(stored, str(folder.path), True)
    if before is None or Path(before) != Path(source):
        config = tomli_w.dumps({**parse_run_file(stored.checkpoint.config, FORMER_RUN), "resume": source})
    return replace(origin, config=config)


def _checkpoint_of(config: str | None) -> str | None:
    return checkpoint_in(parse_run_file(config, "it").get("resume")) if config else None


def config_of(folder: RunFolder) -> tuple[str | None, str]:
    """(the configuration of the folder's run or None, the problem of a file that is none). Not an error: this start
    has its own options."""
    try:
        text = parsing.read_text(folder.config, opener=files.open_nofollow)
        resolve(("it", parse_run_file(text, "it")))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, ConfigError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return None, f"{folder.config} is not what a run writes ({why})"
    return text, ""


def _continued(stored: FoundCheckpoint, folder: str | None, continues: bool) -> Origin:
    facts, config = common_facts(stored.checkpoint), stored.checkpoint.config
    return Origin(facts=facts, folder=folder, continues=continues, config=config, stored=stored)


def _lies_in(path: str | Path, folder: str | Path) -> bool:
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def resolve_run(origin: Origin, options: RunOptions) -> tuple[TrainConfig, ModelSpec]:
    """Lay the sources of the configuration over one another. A run that goes on keeps its network. Raises ConfigError
    for options that do not go together."""
    options.checked()
    before = parse_run_file(origin.config, FORMER_RUN) if origin.config else {}
    if origin.facts is not None:
        before.setdefault("shuffle", FULL)  # the order of versions without --shuffle, whose checkpoints do not name it
    flags = {key: value for _, values in options.layers for key, value in values.items()}
    # The configuration keeps the checkpoint of the first start: until there is another, the next start looks for it.
    first = checkpoint_in(before.get("resume")) if origin.continues else None
    kept = (FORMER_RUN, {"resume": first} if first else {})
    former = without_former(for_continuation(before), flags)
    # Not what flags replace: a value of an earlier version may be among it.
    layers = [(FORMER_RUN, {key: former[key] for key in former if key not in flags}), *options.layers, kept]
    config = resolve(*layers)
    if checkpoint_in(config.run.resume) and any(values.get("init") for _, values in options.layers):
        raise ConfigError(
            f"--init {config.model.init} begins a run, and --resume {config.run.resume} goes on with one, whose "
            "weights it has: leave one of them out"
        )
    if origin.facts is None:
        model = _loaded(config.model)
        config = resolve(recipe_layer(model.name, model.recipe), *layers)
    else:
        model = spec.parse_model(origin.facts["model"], origin.facts["model_name"], "the model in the checkpoint")
        if "model" in flags:
            other = _loaded(config.model)
            if (model.nodes, model.input) != (other.nodes, other.input):
                raise CheckpointError(
                    f"the checkpoint is of another model than {config.model.model!r}: its {model.name!r} has other "
                    "layers or another input. Leave --model out to go on with the checkpoint's, or start a new run"
                )
        _check_fixed(resolve((FORMER_RUN, without_removed(before))), config)
    check_options(config)
    make_loss(config.model)  # a known one
    return config, model


def _loaded(config: ModelConfig) -> ModelSpec:
    """The model of a run that begins anew."""
    model = spec.load_model(config.model)
    return with_classes(model, config.classes) if config.classes else model


def _check_fixed(before: TrainConfig, now: TrainConfig) -> None:
    """Raise ConfigError for an option that a run keeps."""
    order = "", "its examples, its optimizer's state or its best checkpoint depend"
    bits = " is reproducible, and", "the bits of its products depend"
    keys = dict.fromkeys(options_that("fixed"), order)
    keys |= {key: bits for key in options_that("fixes_bits") if before.exchange.reproducible}
    old, new = before.values(), now.values()
    for key, words in keys.items():
        _check_kept(key, old[key], new[key], *words)
    _check_kept("best_by", best_by_of(before), best_by_of(now), *order)  # of a loss, which is the same by now


def _check_kept(key: str, old, new, kind: str, why: str) -> None:
    if old != new:
        raise ConfigError(
            f"{FORMER_RUN}{kind} has {key} = {old!r}, not {new!r}: {why} on that, so leave it out; to change it, start "
            "a new run"
        )


def rate_words(run: Assembly, origin: Origin) -> str | None:
    """The note that the rate jumps where a run goes on, as its schedule has another length."""
    if not origin.config or not origin.iteration:
        return None
    former = resolve((FORMER_RUN, without_removed(parse_run_file(origin.config, FORMER_RUN))))
    rate = rate_of(former, length := iterations_of(former.run, run.sampler), run.sampler.iterations_per_epoch)
    was, now = rate.at(origin.iteration - 1), run.rate.at(origin.iteration - 1)
    if former.optimizer != run.config.optimizer or was == now:
        return None
    return (
        f"the rate jumps, as {rate.policy} depends on length: in iteration {origin.iteration:,} it was {was:.3g} of "
        f"a run of {length:,}, and is {now:.3g} of {run.iterations:,}"
    )


def check_continuation(run: Assembly, origin: Origin) -> None:
    """Raise ConfigError or CheckpointError if the checkpoint does not go on with this length, data or network."""
    if origin.facts is None:
        return
    finished, seen = origin.facts["iteration"], origin.facts["examples_seen"]
    if run.iterations < finished:
        length = length_of(run.config.run)
        raise ConfigError(
            f"the run that goes on has finished {finished} iterations, more than the {run.iterations} of {length}: "
            "give the number in all, or an earlier checkpoint"
        )
    run.exchange.owned_state.check_names(origin.facts["slots"])
    other = difference(origin.facts["data_checksum"], run.data.checksum)
    if other:
        raise CheckpointError(
            f"the checkpoint was trained on other data: {origin.facts['data_name']!r}, and here is {run.data.name!r}: "
            f"{other}; give that --data"
        )
    if origin.stored:
        store.check_parameters(origin.stored.checkpoint, parameter_shapes(run.arena), str(origin.stored.path))
        store.check_resumable(origin.stored.checkpoint, SUMS, str(origin.stored.path))
    if run.sampler.iteration_at(seen) != finished:
        raise CheckpointError(
            f"the checkpoint says iteration {finished:,}, but {seen:,} examples seen, which is another iteration with "
            f"batches of {run.sampler.batch}: the file was changed; give another"
        )
