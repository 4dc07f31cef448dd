"""From the sources of a configuration to one record.

Sources are laid over one another: defaults, the recipe of the model file, the configuration of a run that is resumed,
the run file, the flags; later ones win, and an error names the source that it came from.
"""

import json
import re
import shlex
from dataclasses import asdict

from ringtrain import parsing
from ringtrain.config import FORMER_KEYS, OF_ONE_START, RECIPE_KEYS, TrainConfig, config_fields, default_of, kind_of
from ringtrain.errors import ConfigError, nearest

FLAGS = "flags"  # the source of what the command line says
YAML = re.compile(r"^([A-Za-z]\w*):[ \t]+([^\s#][^#\n]*)", re.MULTILINE)


def parse_toml(text: str, source: str) -> dict:
    try:
        return parsing.parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def read_run_file(path: str) -> dict:
    """The flat table of a TOML run file."""
    try:
        text = parsing.read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"run file {path} cannot be read: {error}") from None
    try:
        return parse_toml(text, f"run file {path}")
    except ConfigError as error:
        raise ConfigError(f"{error}{_as_toml(text)}") from None


def _as_toml(text: str) -> str:
    """What to write in place of YAML, where a file that is no TOML looks like that."""
    found = YAML.search(text)
    if found is None:
        return ""
    key, value = found[1], found[2].strip()
    try:
        parsing.parse_toml(f"{key} = {value}")
    except ValueError:
        value = json.dumps(value, ensure_ascii=False)
    return f". It looks like YAML, and a run file is TOML: write {key} = {value}"


def resolve(*layers: tuple[str, dict]) -> TrainConfig:
    """Lay (source, values) over one another and over the defaults, each value checked.

    ``iterations`` and ``epochs`` are two words for one thing: a layer that gives one sets the other aside.
    Raises ConfigError, naming source and key.
    """
    values = {}
    for source, given in layers:
        for key, value in given.items():
            if key not in FORMER_KEYS:
                values[key] = _checked(source, key, value)
        _one_length(source, given, values)
    return TrainConfig(**values)


def _one_length(source: str, given: dict, values: dict) -> None:
    epochs, iterations = given.get("epochs"), given.get("iterations")
    if epochs is not None and iterations is not None:
        both = [_named(source, key) for key in ("epochs", "iterations")]
        raise ConfigError(f"both {both[0]} ({epochs}) and {both[1]} ({iterations}) are given; give one")
    if epochs is not None:
        values["iterations"] = None
    if iterations is not None:
        values["epochs"] = None


def _checked(source: str, key: str, value):
    known = config_fields()
    if key not in known:
        raise ConfigError(f"{source}: unknown key {key!r}; {nearest(key, known)}")
    spec, where = known[key], (source, key)
    if value is None:
        return None
    if isinstance(default_of(spec), tuple):
        if not isinstance(value, (list, tuple)):
            raise _refused(where, value, f"it wants {LIST_OF_EPOCHS if spec.metadata['epochs'] else LIST}")
        return tuple(_scalar(where, int, spec.metadata, item) for item in value)
    return _scalar(where, kind_of(spec), spec.metadata, value)


def _named(source: str, key: str) -> str:
    """The flag as it is typed, or the key of the file that it stands in."""
    return f"--{key.replace('_', '-')}" if source == FLAGS else f"{source}: {key}"


def _refused(where: tuple[str, str], value, wanted: str) -> ConfigError:
    """``where``: source and key"""
    if where[0] == FLAGS:
        return ConfigError(f"{_named(*where)} {shlex.quote(str(value))}: {wanted}")
    return ConfigError(f"{_named(*where)} is {value!r}; {wanted}")


LIST, LIST_OF_EPOCHS = "a list of whole numbers", 'a list like [4000] or ["30ep", "60ep"]'
IN_EPOCHS = "a whole number of iterations, or epochs like 5ep or 0.5ep"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _scalar(where: tuple[str, str], kind: type, rules, value):
    if type(value) is int and abs(value) > parsing.LARGEST_NUMBER:
        word = f"at most {parsing.LARGEST_NUMBER}" if value > 0 else f"at least -{parsing.LARGEST_NUMBER}"
        raise ConfigError(f"{_named(*where)} is a number of {len(str(abs(value)))} digits; it wants {word}")
    if kind is float and type(value) is int:
        value = float(value)
    if rules["epochs"] and type(value) is str:
        return _in_epochs(where, rules, value)
    if type(value) is not kind:
        raise _refused(where, value, f"it wants {IN_EPOCHS if rules['epochs'] else _WORDS[kind]}")
    if kind is float and value - value != 0:
        raise _refused(where, value, "it wants a finite number")
    if kind is str:
        _check_text(where, value)
    if rules["choices"] and value not in rules["choices"]:
        raise _refused(where, value, nearest(value, rules["choices"]))
    _check_bounds(where, rules, value)
    return value


def _in_epochs(where: tuple[str, str], rules, value: str) -> str:
    count = parsing.epochs(value)
    if count is None:
        raise _refused(where, value, f"it wants {IN_EPOCHS}")
    if rules["low"] and not count:
        raise _refused(where, value, "it wants more than 0ep")
    return value


def _check_text(where: tuple[str, str], value: str) -> None:
    if not value:
        raise ConfigError(f"{_named(*where)} is empty: {parsing.UNSET}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{_named(*where)} is {value!r}, which is not text in UTF-8") from None
    if "\0" in value:
        raise ConfigError(f"{_named(*where)} is {value!r}; no name has a zero byte in it")


def _check_bounds(where: tuple[str, str], rules, value) -> None:
    bounds = (
        (rules["low"], lambda v, b: v >= b, "at least"),
        (rules["above"], lambda v, b: v > b, "more than"),
        (rules["below"], lambda v, b: v < b, "less than"),
        (rules["high"], lambda v, b: v <= b, "at most"),
    )
    for bound, holds, word in bounds:
        if bound is not None and not holds(value, bound):
            raise _refused(where, value, f"it wants {word} {bound}")


def recipe_layer(model_name: str, recipe: dict) -> tuple[str, dict]:
    """The recipe of a model file as a layer of :func:`resolve`. Raises: ConfigError for a key that no recipe has."""
    source = f"recipe of model {model_name}"
    for key in recipe:
        if key not in RECIPE_KEYS:
            raise ConfigError(f"{source}: {key!r} is not a recipe's key; {nearest(key, RECIPE_KEYS)}")
    return source, recipe


def to_table(config: TrainConfig) -> dict:
    """The keys that are set, as a run file would hold them."""
    table = {key: value for key, value in asdict(config).items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}


def for_continuation(table: dict) -> dict:
    """A stored configuration as a layer under the flags of the run that continues it."""
    return {key: value for key, value in table.items() if key not in OF_ONE_START}
