"""Merge the sources of a configuration into one record.

The sources, in order: defaults, the recipe of the model file, the configuration of a resumed run, the run file, the
flags. Later ones win, and an error names the source of the bad value.
"""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict

from ringtrain import parsing
from ringtrain.config import texts
from ringtrain.config.record import (
    FORMER_KEYS,
    FORMER_VALUES,
    OF_ONE_START,
    RECIPE_KEYS,
    TrainConfig,
    config_fields,
    default_of,
    kind_of,
)
from ringtrain.errors import ConfigError, nearest

FLAGS = "flags"  # the source of the command line's values
YAML = re.compile(r"^([A-Za-z]\w*):[ \t]+([^\s#][^#\n]*)", re.MULTILINE)


def parse_run_file(text: str, source: str) -> dict:
    """Parse the TOML of a run file, which may be of an earlier version. Raises ConfigError"""
    try:
        table = renamed(parsing.parse_toml(text))
    except ValueError as error:
        raise ConfigError(texts.NOT_TOML(source=source, error=error)) from None
    return {key: value for key, value in table.items() if FORMER_KEYS.get(key, key) is not None}


def renamed(table: dict) -> dict:
    """Return a table with the names of this version for the keys and values of an earlier one."""
    named = {FORMER_KEYS.get(key) or key: value for key, value in table.items()}
    return {key: FORMER_VALUES.get((key, str(value)), value) for key, value in named.items()}


def read_run_file(path: str, opener: Callable[[str, int], int] | None = None) -> dict:
    """Return the flat table of a TOML run file. ``opener``: as of :func:`open`."""
    try:
        text = parsing.read_text(path, opener=opener)
    except (OSError, ValueError) as error:
        raise ConfigError(texts.UNREADABLE(path=path, error=error)) from None
    try:
        return parse_run_file(text, texts.RUN_FILE(path=path))
    except ConfigError as error:
        raise ConfigError(_with_toml(error, text)) from None


def _with_toml(error: ConfigError, text: str) -> str:
    """Return the error, with the right TOML if the text looks like YAML."""
    found = YAML.search(text)
    if found is None:
        return str(error)
    key, value = found[1], found[2].strip()
    try:
        parsing.parse_toml(f"{key} = {value}")
    except ValueError:
        value = json.dumps(value, ensure_ascii=False)
    return texts.WRITE_TOML(error=error, key=key, value=value)


def resolve(*layers: tuple[str, dict]) -> TrainConfig:
    """Merge (source, values) in order over the defaults, each value checked.

    ``iterations`` and ``epochs`` both set the length: a source that gives one unsets the other.
    Raises ConfigError, naming source and key.
    """
    values = {}
    for source, given in layers:
        for key, value in given.items():
            values[key] = _checked(source, key, value)
        _one_length(source, given, values)
    return TrainConfig(**values)


def _one_length(source: str, given: dict, values: dict) -> None:
    epochs, iterations = given.get("epochs"), given.get("iterations")
    if epochs is not None and iterations is not None:
        names = {f"{key}_name": _named(source, key) for key in ("epochs", "iterations")}
        raise ConfigError(texts.BOTH_LENGTHS(epochs=epochs, iterations=iterations, **names))
    if epochs is not None:
        values["iterations"] = None
    if iterations is not None:
        values["epochs"] = None


def _checked(source: str, key: str, value):
    known = config_fields()
    if key not in known:
        raise ConfigError(texts.UNKNOWN_KEY(source=source, key=key, hint=nearest(key, known)))
    spec, where = known[key], (source, key)
    if value is None:
        return None
    if isinstance(default_of(spec), tuple):
        if not isinstance(value, (list, tuple)):
            raise _wanted(where, value, texts.LIST_OF_EPOCHS if spec.metadata["epochs"] else texts.LIST)
        return tuple(_scalar(where, int, spec.metadata, item) for item in value)
    return _scalar(where, kind_of(spec), spec.metadata, value)


def _named(source: str, key: str) -> str:
    """Return the flag as the user types it, or the file's key."""
    return texts.IN_FLAG(flag=key.replace("_", "-")) if source == FLAGS else texts.IN_FILE(source=source, key=key)


def _refused(where: tuple[str, str], value, wanted: str) -> ConfigError:
    """Return the error for a bad value. ``where``: source and key"""
    if where[0] == FLAGS:
        return ConfigError(texts.REFUSED_FLAG(name=_named(*where), value=shlex.quote(str(value)), wanted=wanted))
    return ConfigError(texts.REFUSED_KEY(name=_named(*where), value=value, wanted=wanted))


def _wanted(where: tuple[str, str], value, wanted: str) -> ConfigError:
    return _refused(where, value, texts.WANTS(wanted=wanted))


_WORDS = {int: texts.A_WHOLE_NUMBER, float: texts.A_NUMBER, bool: texts.TRUE_OR_FALSE, str: texts.A_TEXT}


def _scalar(where: tuple[str, str], kind: type, rules, value):
    if type(value) is int and abs(value) > parsing.LARGEST_NUMBER:
        most = parsing.LARGEST_NUMBER
        wanted = texts.AT_MOST(bound=most) if value > 0 else texts.AT_LEAST(bound=-most)
        raise ConfigError(texts.TOO_LONG(name=_named(*where), digits=len(str(abs(value))), wanted=wanted))
    if kind is float and type(value) is int:
        value = float(value)
    if rules["epochs"] and type(value) is str:
        return _in_epochs(where, rules, value)
    if type(value) is not kind:
        raise _wanted(where, value, texts.IN_EPOCHS if rules["epochs"] else _WORDS[kind])
    if isinstance(value, float) and not math.isfinite(value):
        raise _wanted(where, value, texts.A_FINITE_NUMBER)
    if isinstance(value, str):
        _check_text(where, value)
        if rules["choices"] and value not in rules["choices"]:
            known = nearest(value, rules["choices"])
            raise _refused(where, value, texts.OR_PLUGIN(known=known) if isinstance(rules["choices"], list) else known)
    _check_bounds(where, rules, value)
    return value


def _in_epochs(where: tuple[str, str], rules, value: str) -> str:
    count = parsing.epochs(value)
    if count is None:
        raise _wanted(where, value, texts.IN_EPOCHS)
    if rules["low"] and not count:
        raise _wanted(where, value, texts.MORE_THAN_NO_EPOCH)
    return value


def _check_text(where: tuple[str, str], value: str) -> None:
    if not value:
        raise ConfigError(texts.EMPTY(name=_named(*where), why=parsing.UNSET))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(texts.NOT_UTF8(name=_named(*where), value=value)) from None
    if "\0" in value:
        raise ConfigError(texts.ZERO_BYTE(name=_named(*where), value=value))


def _check_bounds(where: tuple[str, str], rules, value) -> None:
    bounds = (
        (rules["low"], lambda v, b: v >= b, texts.AT_LEAST),
        (rules["above"], lambda v, b: v > b, texts.MORE_THAN),
        (rules["below"], lambda v, b: v < b, texts.LESS_THAN),
        (rules["high"], lambda v, b: v <= b, texts.AT_MOST),
    )
    for bound, holds, text in bounds:
        if bound is not None and not holds(value, bound):
            raise _wanted(where, value, text(bound=bound))


def recipe_layer(model_name: str, recipe: dict) -> tuple[str, dict]:
    """Return the recipe of a model file as a source of :func:`resolve`. Raises: ConfigError for a key that no recipe
    has."""
    source = texts.RECIPE(model=model_name)
    for key in recipe:
        if FORMER_KEYS.get(key, key) not in RECIPE_KEYS:
            raise ConfigError(texts.NOT_OF_A_RECIPE(source=source, key=key, hint=nearest(key, RECIPE_KEYS)))
    return source, renamed(recipe)


def to_table(config: TrainConfig) -> dict:
    """Return the keys that are set, as a run file would hold them."""
    table = {key: value for key, value in asdict(config).items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}


def for_continuation(table: dict) -> dict:
    """Return a stored configuration as a source under the flags of the run that continues it."""
    return {key: value for key, value in table.items() if key not in OF_ONE_START}
