"""Flags of measuring commands, made from the fields of their options; parsers of sizes, shares, figures of a rank."""

import re
from dataclasses import Field, fields
from typing import Any

import click

from ringtrain.cli.options import Listed, Size
from ringtrain.config.option import as_flag, kind_of
from ringtrain.parsing import whole_number


class Fraction(click.ParamType):
    """A share, as 5% or 0.05."""

    name = "share"

    def convert(self, value, param, ctx):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", value) if isinstance(value, str) else None
        if not match:
            self.fail(f"{value!r} is not a share: write it as 5% or 0.05", param, ctx)
        return float(match[1]) / (100 if match[2] else 1)


class OfRank(click.ParamType):
    """RANK:FIGURE, a figure above ``above`` and at most ``most``."""

    def __init__(self, what: str, above: float, most: float, example: str):
        self.name = f"rank:{what.split()[-1]}"
        self._what, self._above, self._most, self._example = what, above, most, example

    def convert(self, value, param, ctx):
        match = re.fullmatch(r"(\d+):(\d*\.?\d+(?:e-?\d+)?)", value) if isinstance(value, str) else None
        rank = whole_number(match[1]) if match else None
        if match is None or rank is None or not self._above < float(match[2]) <= self._most:
            bounds = f"above {self._above:g} and at most {self._most:g}"
            message = f"{value!r} is not a rank and its {self._what}, {bounds}: write it as {self._example}"
            self.fail(message, param, ctx)
        return rank, float(match[2])


KINDS: dict[str, click.ParamType] = {
    "bytes": Size(),
    "bytes,...": Listed(Size()),
    "share": Fraction(),
    "path": click.Path(),
    "rank:seconds": OfRank("delay in seconds", 0, 60, "1:0.01"),
}


def flags_of(record: type):
    """Return a decorator of a command: a flag for each field of a record, by :func:`ringtrain.config.option.flag`."""

    def decorate(command):
        for spec in reversed([spec for spec in fields(record) if spec.metadata]):
            command = _option(spec, **spec.metadata)(command)
        return command

    return decorate


def _option(spec: Field, help: str, name, short, kind, low, choices, metavar):
    names = [f"-{short}"] * bool(short) + [as_flag(name or spec.name), spec.name]
    scalar = kind_of(spec)
    if spec.default == ():
        return click.option(*names, multiple=True, metavar=metavar, help=help)
    if scalar is bool:
        return click.option(*names, is_flag=True, help=help)
    shape: Any = KINDS[kind] if kind else scalar
    if choices:
        shape = click.Choice(choices)
    elif low is not None:
        shape = click.IntRange(low) if scalar is int else click.FloatRange(low)
    shown = spec.default is not None
    return click.option(*names, type=shape, default=spec.default, show_default=shown, metavar=metavar, help=help)
