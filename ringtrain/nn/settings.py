"""Settings: the values that a key of a layer accepts. A layer declares its fields with these; ringtrain.nn.spec reads
model files by them.

``channels: int = whole(1)`` is a dataclass field that takes whole numbers from 1 on. A field without a
setting (``relu``) is not a key of the model file.
"""

from dataclasses import MISSING, dataclass, field, replace
from typing import Any

from ringtrain.errors import ModelError, nearest
from ringtrain.nn import texts
from ringtrain.nn.base import Fill, Parameter

MOST = (1 << 31) - 1  # kernels of devices take extents as C int


@dataclass(frozen=True, slots=True)
class IntegerSetting:
    """A whole number of at least ``least`` and at most ``most``."""

    least: int
    most: int = MOST

    def read(self, value) -> int:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= self.least
        if not fits or value > self.most:
            most = f" and at most {self.most}" if self.most < MOST or fits else ""
            raise ModelError(f"wants a whole number of at least {self.least}{most}, got {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number from ``least`` to ``most``; ``open_least`` and ``open_most`` exclude the bound itself."""

    least: float = float("-inf")
    most: float = float("inf")
    open_least: bool = False
    open_most: bool = False

    def read(self, value) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not self._holds(value):
            raise ModelError(f"wants a number{self._bounds()}, got {value!r}")
        return float(value)

    def _holds(self, value) -> bool:
        above = value > self.least if self.open_least else value >= self.least
        below = value < self.most if self.open_most else value <= self.most
        return above and below and abs(value) != float("inf")

    def _bounds(self) -> str:
        parts = []
        if self.least > float("-inf"):
            parts.append(f"above {self.least:g}" if self.open_least else f"of at least {self.least:g}")
        if self.most < float("inf"):
            parts.append(f"below {self.most:g}" if self.open_most else f"at most {self.most:g}")
        return f" {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def read(self, value) -> bool:
        if not isinstance(value, bool):
            raise ModelError(f"wants true or false, got {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class WordSetting:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, value) -> str:
        if value not in self.words:
            raise ModelError(f"wants one of these words, got {value!r}; {nearest(str(value), self.words)}")
        return value


# Each way to start a parameter, and the key that carries its one number.
FILLS = {"constant": "value", "gaussian": "std", "uniform": "bound", "xavier": None, "he": None}


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """The initial values of a parameter, and its multipliers of learning rate and weight decay.

    fill and value: as in :class:`ringtrain.nn.base.Fill`.
    """

    fill: str
    value: float = 0.0
    lr: float = 1.0
    decay: float = 1.0

    def parameter(self, name: str, shape, role="weight", fan_in=0, fan_out=0) -> Parameter:
        fill = Fill(self.fill, self.value, fan_in, fan_out)
        return Parameter(name, tuple(shape), fill, role, self.lr, self.decay)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A table of fill, its number, lr and decay: ``{ fill = "gaussian", std = 0.01, lr = 2 }``. If ``optional``, false
    means that the layer has no such parameter."""

    usual: ParameterSpec
    optional: bool = False

    def read(self, value) -> ParameterSpec | None:
        if self.optional and isinstance(value, bool):
            return self.usual if value else None
        if not isinstance(value, dict):
            raise ModelError(
                f'wants true, false or a table like {{ fill = "gaussian", std = 0.01 }}, got {value!r}'
                if self.optional
                else f'wants a table like {{ fill = "gaussian", std = 0.01 }}, got {value!r}'
            )
        return self._table(dict(value))

    def _table(self, table: dict) -> ParameterSpec:
        fill = WordSetting(tuple(FILLS)).read(table.pop("fill", self.usual.fill))
        spec = ParameterSpec(fill) if fill != self.usual.fill else self.usual
        number = FILLS[fill]
        known = {"lr": "lr", "decay": "decay"} | ({number: "value"} if number else {})
        if fill in ("gaussian", "uniform") and number not in table:
            raise ModelError(f"fill {fill!r} wants the key {number!r}")
        for key, given in table.items():
            if key not in known:
                raise ModelError(f"has an unknown key {key!r}; {nearest(key, ['fill', *known])}")
            changed: dict[str, Any] = {known[key]: self._number(key, given)}
            spec = replace(spec, **changed)
        return spec

    @staticmethod
    def _number(key: str, given) -> float:
        try:
            return (Number() if key == "value" else Number(0)).read(given)
        except ModelError as error:
            raise ModelError(texts.AT_KEY(key=key, problem=error)) from None


def setting(reader, default=MISSING):
    """Return a dataclass field that model files may set."""
    return field(default=default, metadata={"setting": reader})


def whole(least: int, default=MISSING, most: int = MOST):
    return setting(IntegerSetting(least, most), default)


def number(default, **bounds):
    return setting(Number(**bounds), default)


# Weights start with the right variance for a ReLU behind them, biases at zero and may be left out.
HE, ZERO = ParameterSpec("he"), ParameterSpec("constant")
WEIGHT = {"setting": Tuned(HE)}
BIAS = {"setting": Tuned(ZERO, optional=True)}
