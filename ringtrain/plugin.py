"""Plug-ins: Python files outside the package with layers, losses, strategies, schedules and optimizers of one's own.

A plug-in is named on the command line alone, by ``--plugin FILE.py``, or by a Python program through
:func:`load_plugins`; no model file, run file or checkpoint can name one. Its code runs with the user's rights. It calls
the ``register_`` functions, which add to the catalogues; a name that exists is refused. Every schedule is proved before
it runs.

A plug-in imports all that it extends from here, such as :class:`Layer` and :class:`Exchange`: ``NAMES`` says which
module each name comes from, and that module is loaded when the name is asked for.
"""

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ringtrain.errors import RingtrainError, ScheduleError, UsageError
from ringtrain.template import Lines, escaped

PROVED_AT_MOST = 128  # ranks: a proof keeps every expression of every chunk
MODULES = {
    "arrays": "Array",
    "collectives.catalogue": "make_schedule",
    "collectives.schedule": "Move Step Schedule",
    "config.exchange": "ExchangeConfig",
    "errors": "ConfigError ModelError UsageError",
    "exchange.base": "Exchange ExchangeFacts OwnedState RankState Roles all_train",
    "exchange.buckets.reducer": "Reducers",
    "exchange.catalogue": "STRATEGIES OwnOption own_options",
    "exchange.parts": "PARTS Parts",
    "exchange.settings": "ExchangeSettings",
    "exchange.update.owned_update": "OwnedUpdate everything",
    "memory.arena": "Arena",
    "memory.spans": "Span",
    "nn.base": "Fill Layer Parameter Pass",
    "nn.catalogue": "LAYERS",
    "nn.layers": "Activation",
    "nn.losses": "LOSSES ONE_CLASS_NUMBER LabelForm Loss ValueLoss",
    "nn.settings": "BIAS WEIGHT ParameterSpec number setting whole",
    "nn.shapes": "shapes",  # the module itself
    "optim.catalogue": "OPTIMIZERS",
    "optim.optimizers": "Optimizer OwnOptimizer",
    "transport.counted": "CountedTransport",
}
NAMES = {name: f"ringtrain.{module}" for module, names in MODULES.items() for name in names.split()}
REGISTER = ["register_layer", "register_loss", "register_optimizer", "register_schedule", "register_strategy"]
__all__ = ["load_plugins", *REGISTER, *NAMES]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'ringtrain.plugin' has no attribute {name!r}")
    module = import_module(NAMES[name])
    return getattr(module, name, module)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in of this process. path: as given; sha256: of the file"""

    path: str
    sha256: str


LOADED: list[Plugin] = []  # in the order of the command line


def load_plugins(paths: Iterable[str]) -> None:
    """Run each file that has not run yet in this process. Raises UsageError, with file and line, for one that is
    missing or raises."""
    for path in map(str, paths):
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"plug-in {path}: {error.strerror}") from None
        plugin = Plugin(path, hashlib.sha256(content).hexdigest())
        if plugin not in LOADED:
            _run(path, content)
            LOADED.append(plugin)


def _run(path: str, content: bytes) -> None:
    """Run the bytes that have been hashed."""
    module = ModuleType(f"plugin_{len(LOADED)}_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look here for the types of fields
    try:
        exec(compile(content, path, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        raise _named(error, path) from error


def _named(error: BaseException, path: str) -> UsageError:
    """The error of a plug-in, with its file and line."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return UsageError(f"plug-in {path}:{error.lineno or 0}: SyntaxError: {error.msg}")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = lines[-1] if lines and lines[-1] else 1
    if isinstance(error, RingtrainError):
        return UsageError(Lines(f"plug-in {escaped(path)}:{line}: {error}"))
    return UsageError(f"plug-in {path}:{line}: {type(error).__name__}: {error}")


def blamed(error: BaseException) -> UsageError | None:
    """The error of a plug-in's code that this unknown error came from; None for a defect of ringtrain."""
    ours = {each.path for each in LOADED}
    named = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
    return _named(error, named[-1]) if named and isinstance(error, Exception) else None


def facts() -> dict[str, str]:
    """Path → sha256 of each plug-in, for records and for the comparison of ranks."""
    return {each.path: each.sha256 for each in LOADED}


# ── registration ──────────────────────────────────────────────────────────────────────────────────────────────────────
def register_layer(layer: type) -> type:
    """Add a kind of layer: the class's name is its kind in model files. Returns the class, as a decorator does."""
    from ringtrain.nn.base import Layer
    from ringtrain.nn.catalogue import LAYERS

    kind = isinstance(layer, type) and issubclass(layer, Layer) and "__dataclass_params__" in vars(layer)
    _check(kind, "register_layer", "a class derived from ringtrain.plugin.Layer, with @dataclass(frozen=True)", layer)
    _whole("layer kind", layer.__name__, layer)
    kinds: dict[str, Any] = LAYERS
    kinds[_free("layer kind", layer.__name__, kinds)] = layer
    return layer


def register_loss(loss: Any) -> Any:
    """Add a loss, by its ``name``, for ``--loss``. Returns the class, as a decorator does."""
    from ringtrain.nn.losses import LOSSES, Loss

    kind = isinstance(loss, type) and issubclass(loss, Loss) and isinstance(getattr(loss, "name", None), str)
    _check(kind, "register_loss", "a class derived from ringtrain.plugin.Loss, with a name", loss)
    _whole("loss", loss.name, loss)
    LOSSES[_free("loss", loss.name, LOSSES)] = loss
    return loss


def register_strategy(name: str, strategy) -> None:
    """Add a strategy for ``--sync``: its row, such as ``dataclasses.replace(STRATEGIES["allreduce"],
    make=…, summary=…)``."""
    from ringtrain.config.presets import PRESETS
    from ringtrain.exchange.catalogue import STRATEGIES, Strategy
    from ringtrain.exchange.compatibility import add_strategy

    _check(
        isinstance(strategy, Strategy),
        "register_strategy",
        "a row of ringtrain.plugin.STRATEGIES, or one that replace() makes of it",
        strategy,
    )
    add_strategy(_free("strategy", name, {*STRATEGIES, *PRESETS}), strategy)


def register_optimizer(name: str, optimizer: type) -> None:
    """Add an update rule for ``--optimizer``."""
    from ringtrain.config.record import OPTIMIZER_NAMES
    from ringtrain.optim.catalogue import OPTIMIZERS
    from ringtrain.optim.optimizers import Optimizer

    kind = isinstance(optimizer, type) and issubclass(optimizer, Optimizer)
    _check(kind, "register_optimizer", "a class derived from ringtrain.plugin.Optimizer", optimizer)
    _whole("optimizer", name, optimizer)
    OPTIMIZERS[_free("optimizer", name, OPTIMIZERS)] = optimizer
    OPTIMIZER_NAMES.append(name)


def register_schedule(name: str, build: Callable, halves: tuple[Callable, Callable] | None = None) -> None:
    """Add an all-reduce for ``--algorithm``. ``build(ranks)`` makes its schedule; ``halves``: the same for its
    reduce-scatter and its all-gather, which ``--sync sharded`` and ``--wire`` need. Each schedule is proved when it is
    made; a wrong one raises UsageError."""
    from ringtrain.allreduce.catalogue import ALGORITHMS, AUTO
    from ringtrain.collectives.algorithms.canonical import NAME
    from ringtrain.collectives.catalogue import SCHEDULES, add_schedule

    wanted = "a function (number of ranks) -> ringtrain.plugin.Schedule"
    _check(callable(build) and all(map(callable, halves or ())), "register_schedule", wanted, build)
    _free("schedule", name, {*SCHEDULES, *ALGORITHMS, AUTO, NAME})
    add_schedule(name, _proved(name, build), halves and (_proved(name, halves[0]), _proved(name, halves[1])))


def _proved(name: str, build: Callable) -> Callable:
    from ringtrain.collectives.proof.verify import verify_schedule
    from ringtrain.collectives.schedule import Schedule

    @cache
    def proved(size: int) -> Schedule:
        if size > PROVED_AT_MOST:
            raise UsageError(
                f"schedule {name!r} is proved before it runs, for at most {PROVED_AT_MOST} ranks; these are {size}"
            )
        schedule = build(size)
        if not isinstance(schedule, Schedule) or schedule.size != size:
            raise UsageError(f"schedule {name!r} for {size} ranks wants a Schedule of {size} ranks, got {schedule!r}")
        try:
            verify_schedule(schedule)
        except ScheduleError as error:
            raise UsageError(Lines(f"schedule {name!r} for {size} ranks is wrong: {error}")) from None
        return schedule

    return proved


def _check(holds: bool, what: str, wanted: str, got) -> None:
    if not holds:
        raise UsageError(f"{what} wants {wanted}, got {got!r}")


def _whole(what: str, name: str, kind: type) -> None:
    """Refuse a class without all methods that its base class wants."""
    if lacking := ", ".join(sorted(getattr(kind, "__abstractmethods__", ()))):
        raise UsageError(f"{what} {name!r} lacks {lacking}")


def _free(what: str, name: str, taken) -> str:
    """The name, if it is free."""
    if not isinstance(name, str) or not name or not name.isprintable() or set(name) & set(" :,"):
        raise UsageError(f"{what} wants a name without blanks, colons and commas, got {name!r}")
    if name in taken:
        raise UsageError(f"{what} {name!r} exists already: choose another name")
    return name
