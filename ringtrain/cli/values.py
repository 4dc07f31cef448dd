"""Parsers of the values of measuring flags: sizes, shares, figures of a rank."""

import re

import click

from ringtrain.bench.sweep.sizes import parse_bytes
from ringtrain.errors import UsageError
from ringtrain.parsing import whole_number


class Size(click.ParamType):
    """Bytes, as in 64K or 1.5M."""

    name = "bytes"

    def convert(self, value, param, ctx):
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Sizes(click.ParamType):
    """Bytes, separated by commas: 64K,1M."""

    name = "bytes,..."

    def convert(self, value, param, ctx):
        return [Size().convert(part, param, ctx) for part in value.split(",")]


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
