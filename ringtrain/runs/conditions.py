"""Conditions on runs, and their order: ``--where "lr>=0.1"``, ``--sort -test_accuracy``.

A name is one of an option, as in a run's configuration, or of a result (:data:`ringtrain.runs.summary.RESULTS`).
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ringtrain.config.option import NEVER, kind_of
from ringtrain.config.record import config_fields
from ringtrain.errors import UsageError, nearest
from ringtrain.parsing import epochs
from ringtrain.report.screen import words
from ringtrain.runs.summary import RESULTS, RunSummary

OPERATORS: dict[str, Callable] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
FORM = re.compile(r"\s*([\w-]+)\s*(!=|<=|>=|=|<|>)\s*([^\s=<>].*?)\s*")
NONE = "none"  # of an option that is not set; some options have a value of this name
TRUTH = {"true": True, "yes": True, "false": False, "no": False}
# Results that are fractions of one, which a user may give in percent.
FRACTIONS = ("test_accuracy", *words.FRACTIONS)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one option or result. wanted: a number, a truth value, or a text"""

    name: str
    operator: str
    wanted: float | bool | str

    def holds(self, run: RunSummary) -> bool:
        """Return whether a run has it. A value that is not there, or of another kind, is unequal and has no order."""
        value = comparable(run.value(self.name))
        if self.operator not in ("=", "!=") and type(value) is not type(self.wanted):
            return False
        return OPERATORS[self.operator](value, self.wanted)


def comparable(value) -> float | bool | str:
    """Return a value as conditions compare it: numbers as float, lists and None as texts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return NONE if value is None else as_text(value)


def as_text(value):
    """Return a list as one text, as a flag has it; any other value as it is."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises UsageError."""
    match = FORM.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--where {text!r} is not NAME OPERATOR VALUE, such as 'lr>=0.1'; operators: =, !=, <, <=, >, >="
        )
    name = known_name("--where", text, match[1])
    return Condition(name, match[2], _wanted(text, name, match[2], match[3]))


def known_name(flag: str, text: str, name: str) -> str:
    """Return the name with underscores. Raises UsageError, with the nearest name, if no option or result has it."""
    known = {*RESULTS, *config_fields()}
    if name.replace("-", "_") not in known:
        raise UsageError(f"{flag} {text!r}: no option or result of a run is called {name!r}; {nearest(name, known)}")
    return name.replace("-", "_")


def _wanted(text: str, name: str, operator: str, value: str) -> float | bool | str:
    spec = config_fields().get(name)
    many = spec is not None and isinstance(spec.default, tuple)
    kind = str if many else RESULTS[name] if spec is None else kind_of(spec)
    if (kind is bool or many or value == NONE) and operator not in ("=", "!="):
        raise UsageError(f"--where {text!r}: {name if value != NONE else NONE} has no order: compare it by = or !=")
    in_epochs = spec is not None and spec.metadata["epochs"] and epochs(value) is not None
    if kind is str or value == NONE or in_epochs:
        return value
    parsed = TRUTH.get(value.lower()) if kind is bool else _number(value, most=1.0 if name in FRACTIONS else None)
    if parsed is None:
        number = "a fraction such as 0.95 or 95%" if name in FRACTIONS else "a number"
        raise UsageError(f"--where {text!r}: {name} wants {'true or false' if kind is bool else number}, or none")
    return parsed


def _number(value: str, most: float | None) -> float | None:
    try:
        number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        return None
    return None if most is not None and abs(number) > most else number


def sort_runs(runs: Iterable[RunSummary], key: str | None) -> list[RunSummary]:
    """Return the runs in rising order of an option or a result, in falling order of "-NAME"; those without it are last.

    ``key``: None is by date, the newest last. Raises UsageError for an unknown name.
    """
    if key is None:
        return sorted(runs, key=lambda run: (run.value("date") or "", run.value("name")))
    name, falling = known_name("--sort", key, key.removeprefix("-")), key.startswith("-")
    runs = list(runs)
    ranked = [run for run in runs if run.value(name) is not None]
    ranked.sort(key=lambda run: _rank(run.value(name)), reverse=falling)
    return [*ranked, *(run for run in runs if run.value(name) is None)]


def _rank(value) -> tuple:
    """Return a key for the order of values of several kinds: numbers before texts."""
    key = comparable(value)
    return (1, key) if isinstance(key, str) else (0, float(key))


def differing(runs: Sequence[RunSummary]) -> list[str]:
    """Return the options whose values are not the same in all runs, without those about files and ``NEVER``."""
    names = [name for name, spec in config_fields().items() if not spec.metadata["about_files"]]
    known = [run.options for run in runs if run.options]
    return [name for name in names if len({comparable(options[name]) for options in known} - {NEVER}) > 1]
