"""From the sources of a configuration to one record.

Sources are laid over one another: defaults, the recipe of the model file, the configuration of a run that is resumed,
the run file, the flags; later ones win, and an error names the source that it came from.
"""

from dataclasses import asdict

from ringtrain import texts
from ringtrain.config import OF_ONE_START, RECIPE_KEYS, TrainConfig, config_fields, default_of, kind_of
from ringtrain.errors import ConfigError, nearest


def parse_toml(text: str, source: str) -> dict:
    try:
        return texts.parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def read_run_file(path: str) -> dict:
    """The flat table of a TOML run file."""
    try:
        text = texts.read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"run file {path} cannot be read: {error}") from None
    return parse_toml(text, f"run file {path}")


def resolve(*layers: tuple[str, dict]) -> TrainConfig:
    """Lay (source, values) over one another and over the defaults, each value checked.

    ``iterations`` and ``epochs`` are two words for one thing: a layer that gives one sets the other aside.
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
        raise ConfigError(f"{source}: both epochs ({epochs}) and iterations ({iterations}) are given; give one")
    if epochs is not None:
        values["iterations"] = None
    if iterations is not None:
        values["epochs"] = None


def _checked(source: str, key: str, value):
    known = config_fields()
    if key not in known:
        raise ConfigError(f"{source}: unknown key {key!r}; {nearest(key, known)}")
    spec = known[key]
    where = f"{source}: {key}"
    if value is None:
        return None
    if isinstance(default_of(spec), tuple):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} is {value!r}; it wants a list of whole numbers")
        return tuple(_scalar(where, int, spec.metadata, item) for item in value)
    return _scalar(where, kind_of(spec), spec.metadata, value)


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _scalar(where: str, kind: type, rules, value):
    if type(value) is int and abs(value) > texts.LARGEST_NUMBER:
        word = f"at most {texts.LARGEST_NUMBER}" if value > 0 else f"at least -{texts.LARGEST_NUMBER}"
        raise ConfigError(f"{where} is a number of {len(str(abs(value)))} digits; it wants {word}")
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where} is {value!r}; it wants {_WORDS[kind]}")
    if kind is float and value - value != 0:
        raise ConfigError(f"{where} is {value}; it wants a finite number")
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{where} is {value!r}, which is not text in UTF-8") from None
        if "\0" in value:
            raise ConfigError(f"{where} is {value!r}; no name has a zero byte in it")
    if rules["choices"] and value not in rules["choices"]:
        raise ConfigError(f"{where} is {value!r}; {nearest(value, rules['choices'])}")
    bounds = (
        (rules["low"], lambda v, b: v >= b, "at least"),
        (rules["above"], lambda v, b: v > b, "more than"),
        (rules["below"], lambda v, b: v < b, "less than"),
        (rules["high"], lambda v, b: v <= b, "at most"),
    )
    for bound, holds, word in bounds:
        if bound is not None and not holds(value, bound):
            raise ConfigError(f"{where} is {value}; it wants {word} {bound}")
    return value


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
