"""Settings: the values that a key of a layer accepts. A layer declares its fields with these; ringtrain.nn.spec reads
model files by them.

``channels: int = whole(1)`` is a dataclass field that takes whole numbers from 1 on. A field without a
setting (``relu``) is not a key of the model file."""

from dataclasses import MISSING, dataclass, field, replace
from functools import partial

from ringtrain.nn.base import Fill, Parameter
from ringtrain.records import Key, check_keys, read_fields, unfit

RULES = ("low", "above", "below", "high", "choices", "lengths", "wanted", "reader")
MOST = (1 << 31) - 1  # kernels of devices take extents as C int


# Each way to start a parameter, and the key that carries its one number.
FILLS = {"constant": "value", "gaussian": "std", "uniform": "bound", "xavier": None, "he": None}


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """The initial values of a parameter, and its multipliers of learning rate and weight decay.

    fill and value: as in :class:`ringtrain.nn.base.Fill`."""

    fill: str
    value: float = 0.0
    lr: float = 1.0
    decay: float = 1.0

    def parameter(self, name: str, shape, role="weight", fan_in=0, fan_out=0) -> Parameter:
        fill = Fill(self.fill, self.value, fan_in, fan_out)
        return Parameter(name, tuple(shape), fill, role, self.lr, self.decay)


NUMBER = {"low": None, "high": None}  # any that is finite
NOT_BELOW_0 = {"low": 0, "high": None}


def _parameter(usual: ParameterSpec, optional: bool, value) -> ParameterSpec | None:
    """Read a table of fill, its number, lr and decay: ``{ fill = "gaussian", std = 0.01, lr = 2 }``. If ``optional``,
    false means that the layer has no such parameter. Raises Unfit."""
    if optional and isinstance(value, bool):
        return usual if value else None
    if not isinstance(value, dict):
        words = "true, false or a table" if optional else "a table"
        raise unfit(dict, value, {"wanted": words + ' like { fill = "gaussian", std = 0.01 }'})
    fills: Key = ("fill", str, {"choices": tuple(FILLS)}, False)
    fill = read_fields({"fill": fills}, value).get("fill", usual.fill)
    known = {"fill": fills, "lr": ("lr", float, NOT_BELOW_0, False), "decay": ("decay", float, NOT_BELOW_0, False)}
    if of_fill := FILLS[fill]:
        rules = NUMBER if fill == "constant" else NOT_BELOW_0
        known[of_fill] = ("value", float, rules, fill in ("gaussian", "uniform"))
    check_keys(value, known)
    return replace(usual if fill == usual.fill else ParameterSpec(fill), **read_fields(known, value))


def setting(kind, default=MISSING, **rules):
    """Return a dataclass field that model files may set. ``rules``: of :mod:`ringtrain.records`. Raises TypeError for
    another one: a bound of an earlier version must not be lost."""
    if unknown := rules.keys() - RULES:
        raise TypeError(f"a setting has no rule {', '.join(sorted(unknown))}; it has {', '.join(RULES)}")
    return field(default=default, metadata={"kind": kind, **rules})


def whole(least: int, default=MISSING, most: int = MOST):
    return setting(int, default, low=least, high=most)


def number(default, **bounds):
    return setting(float, default, **NUMBER | bounds)


# Weights start with the right variance for a ReLU behind them, biases at zero and may be left out.
HE, ZERO = ParameterSpec("he"), ParameterSpec("constant")
WEIGHT = {"kind": ParameterSpec, "reader": partial(_parameter, HE, False)}
BIAS = {"kind": ParameterSpec, "reader": partial(_parameter, ZERO, True)}
