"""Merge the sources of a configuration into one record.

The sources, in order: defaults, the preset of ``--sync``, the recipe of the model file, the configuration of a resumed
run, the run file, the flags. Later ones win, and an error names the source of the bad value.
"""

import json
import math
import re
import shlex
from collections.abc import Callable

from ringtrain import parsing
from ringtrain.config import record
from ringtrain.config.option import as_flag, kind_of
from ringtrain.config.presets import options_of
from ringtrain.config.record import FORMER_KEYS, TrainConfig, config_fields, make_config, options_that
from ringtrain.errors import ConfigError, nearest
from ringtrain.records import WORDS

IN_EPOCHS = "a whole number of iterations, or epochs like 5ep or 0.5ep"
LIST_OF_STEPS, LIST_OF_OPTIONS = '[4000] or ["30ep", "60ep"]', '["NAME=VALUE"]'
FLAGS = "flags"  # the source of the command line's values
YAML = re.compile(r"^([A-Za-z]\w*):[ \t]+([^\s#][^#\n]*)", re.MULTILINE)


def parse_run_file(text: str, source: str) -> dict:
    """Parse the TOML of a run file, which may be of an earlier version. Raises ConfigError"""
    try:
        table = renamed(parsing.parse_toml(text))
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    return _without_gone(table)


def _without_gone(table: dict) -> dict:
    """Return a table without keys that are gone, but for values whose removal changes a run."""
    return {key: value for key, value in table.items() if FORMER_KEYS.get(key, key) is not None or _removed(key, value)}


def renamed(table: dict) -> dict:
    """Return a table with the names of this version for the keys of an earlier one."""
    return {FORMER_KEYS.get(key) or key: value for key, value in table.items()}


def without_removed(table: dict) -> dict:
    """Return a stored configuration without values that no run starts with: trained weights are as good as others."""
    choices = {key: spec.metadata["choices"] for key, spec in config_fields().items()}
    return {
        key: value
        for key, value in table.items()
        if not _removed(key, value) and (not isinstance(choices.get(key), tuple) or value in choices[key])
    }


def _removed(key: str, value) -> str | None:
    return record.REMOVED_VALUES.get((key, str(value)), record.REMOVED_VALUES.get((key, record.ANY)))


def read_run_file(path: str, opener: Callable[[str, int], int] | None = None) -> dict:
    """Return the flat table of a TOML run file. ``opener``: as of :func:`open`."""
    try:
        text = parsing.read_text(path, opener=opener)
    except (OSError, ValueError) as error:
        raise ConfigError(f"run file {path} cannot be read: {error}") from None
    try:
        return parse_run_file(text, f"run file {path}")
    except ConfigError as error:
        match = YAML.search(text)
        if match is None:
            raise
        key, value = match[1], match[2].strip()
        try:
            parsing.parse_toml(f"{key} = {value}")
        except ValueError:
            value = json.dumps(value, ensure_ascii=False)
        raise ConfigError(f"{error}. It looks like YAML, and a run file is TOML: write {key} = {value}") from None


def resolve(*layers: tuple[str, dict]) -> TrainConfig:
    """Merge (source, values) in order over the defaults, each value checked.

    ``iterations`` and ``epochs`` both set the length: a source that gives one unsets the other.
    Raises ConfigError, naming source and key.
    """
    values = {}
    for source, options in layers:
        for key, value in options.items():
            values[key] = _checked(source, key, value)
        _one_length(source, options, values)
    return make_config(**{**_of_preset(values), **values})


def _of_preset(values: dict) -> dict:
    """Return the preset's values, without those of a part that ``values`` replace: of ``--compress none`` no bits."""
    spec, preset = config_fields(), options_of(values.get("sync"))
    users = {name: spec[name].metadata["used_by"] or (name, None) for name in preset}
    replaced = {
        name for name, (other, accepts) in users.items() if accepts and values.get(other, accepts[0]) not in accepts
    }
    return {name: value for name, value in preset.items() if name not in replaced}


def _one_length(source: str, options: dict, values: dict) -> None:
    epochs, iterations = options.get("epochs"), options.get("iterations")
    if epochs is not None and iterations is not None:
        both = f"{_named(source, 'epochs')} ({epochs}) and {_named(source, 'iterations')} ({iterations})"
        raise ConfigError(f"both {both} are given; give one")
    if epochs is not None:
        values["iterations"] = None
    if iterations is not None:
        values["epochs"] = None


def _checked(source: str, key: str, value):
    known, instead = config_fields(), _removed(key, value)
    if instead is not None:
        raise _refused((source, key), value, f"this version of ringtrain has it no more; {instead}")
    if key not in known:
        raise ConfigError(f"{source}: unknown key {key!r}; {nearest(key, known)}")
    spec, where = known[key], (source, key)
    steps = spec.metadata["epochs"]
    if value is None:
        return None
    if isinstance(spec.default, tuple):
        if not isinstance(value, (list, tuple)):
            raise _wanted(where, value, f"a list like {LIST_OF_STEPS if steps else LIST_OF_OPTIONS}")
        return tuple(_scalar(where, int if steps else str, spec.metadata, item) for item in value)
    return _scalar(where, kind_of(spec), spec.metadata, value)


def _named(source: str, key: str) -> str:
    """Return the flag as the user types it, or the file's key."""
    return as_flag(key) if source == FLAGS else f"{source}: {key}"


def _refused(where: tuple[str, str], value, wanted: str) -> ConfigError:
    """Return the error for a bad value. ``where``: source and key"""
    if where[0] == FLAGS:
        return ConfigError(f"{_named(*where)} {shlex.quote(str(value))}: {wanted}")
    return ConfigError(f"{_named(*where)} is {value!r}; {wanted}")


def _wanted(where: tuple[str, str], value, wanted: str) -> ConfigError:
    return _refused(where, value, f"it wants {wanted}")


def _scalar(where: tuple[str, str], kind: type, rules, value):
    if type(value) is int and abs(value) > parsing.LARGEST_NUMBER:
        most = parsing.LARGEST_NUMBER
        wanted = f"at most {most}" if value > 0 else f"at least {-most}"
        raise ConfigError(f"{_named(*where)} is a number of {len(str(abs(value)))} digits; it wants {wanted}")
    if kind is float and type(value) is int:
        value = float(value)
    if rules["epochs"] and type(value) is str and (count := parsing.epochs(value)) is not None:
        if rules["low"] and not count:
            raise _wanted(where, value, "more than 0ep")
        return value
    if rules["size"] and type(value) is str:
        try:
            value = parsing.size(value)
        except ValueError as error:
            raise ConfigError(f"{_named(*where)}: {error}") from None
    if type(value) is not kind:
        raise _wanted(where, value, IN_EPOCHS if rules["epochs"] else WORDS[kind])
    if isinstance(value, float) and not math.isfinite(value):
        raise _wanted(where, value, "a finite number")
    if isinstance(value, str):
        _check_text(where, value)
        if rules["choices"] and value not in rules["choices"]:
            known, open_to_all = nearest(value, rules["choices"]), isinstance(rules["choices"], list)
            raise _refused(where, value, f"{known}; one of your own needs --plugin FILE.py" if open_to_all else known)
    _check_bounds(where, rules, value)
    return value


def _check_text(where: tuple[str, str], value: str) -> None:
    if not value:
        raise ConfigError(f"{_named(*where)} is empty: {parsing.UNSET}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{_named(*where)} is {value!r}, which is not text in UTF-8") from None
    if "\0" in value:
        raise ConfigError(f"{_named(*where)} is {value!r}; a name has no zero byte")


def _check_bounds(where: tuple[str, str], rules, value) -> None:
    bounds = (
        (rules["low"], lambda v, b: v >= b, "at least"),
        (rules["above"], lambda v, b: v > b, "more than"),
        (rules["below"], lambda v, b: v < b, "less than"),
        (rules["high"], lambda v, b: v <= b, "at most"),
    )
    for bound, holds, words in bounds:
        if bound is not None and not holds(value, bound):
            raise _wanted(where, value, f"{words} {bound}")


def recipe_layer(model_name: str, recipe: dict) -> tuple[str, dict]:
    """Return the recipe of a model file as a source of :func:`resolve`. Raises: ConfigError for a key that no recipe
    has."""
    source, known, recipe = f"recipe of model {model_name}", options_that("recipe"), _without_gone(recipe)
    for key in recipe:
        if FORMER_KEYS.get(key, key) not in known:
            raise ConfigError(f"{source}: {key!r} is not a recipe's key; {nearest(key, known)}")
    return source, renamed(recipe)


def to_table(config: TrainConfig) -> dict:
    """Return the keys that are set, as a run file would hold them."""
    table = {key: value for key, value in config.values().items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}


def for_continuation(table: dict) -> dict:
    """Return a stored configuration as a source under the flags of the run that continues it."""
    once = options_that("once")
    return {key: value for key, value in table.items() if key not in once}
