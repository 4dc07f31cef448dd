"""Flags made from the fields of records: of a run, where every flag is a key of a run file and the reverse; and of the
options of measuring commands."""

import re
from collections.abc import Collection
from dataclasses import Field, fields
from typing import Any

import click

from ringtrain.config.option import SECTIONS, as_flag, kind_of
from ringtrain.config.presets import PRESETS
from ringtrain.config.record import config_fields
from ringtrain.errors import UsageError, nearest
from ringtrain.parsing import epochs, size
from ringtrain.show.output import echo

TERMS, LINE = (30, 20), 54  # characters: texts of all sections begin in one column; a usual option has a line of 80
USUAL, ALL = "", "all"  # what --help shows, beside sections


class Sectioned(click.Command):
    """A command whose help has its options in sections: ``sections`` is {title: names of parameters}.

    ``usual``: parameters of which ``--help`` shows a line each; ``--help SECTION`` and ``--help all`` then show more.
    """

    def __init__(self, *arguments, sections=None, usual=(), **more):
        super().__init__(*arguments, **more)
        self._sections, self._usual, self._titles = sections or {}, usual, dict[str, str]()
        for title in self._sections:
            words = title.lower().split()
            self._titles["-".join(words) if words[0] in self._titles else words[0]] = title
        if usual:
            how: dict[str, Any] = {"is_flag": False, "flag_value": USUAL, "is_eager": True, "expose_value": False}
            help = "Show the usual options, those of a section, or all."
            option = click.Option(["-h", "--help"], metavar="[SECTION|all]", callback=self._show_help, help=help, **how)
            self.params.append(option)

    def _show_help(self, ctx, param, asked):
        if asked is not None:
            if asked not in (known := {**self._titles, ALL: ALL, USUAL: USUAL}):
                raise UsageError(f"--help {asked}: no section has this name; {nearest(asked, [*self._titles, ALL])}")
            ctx.meta[USUAL] = known[asked]
            echo(*ctx.get_help().splitlines())
            ctx.exit()

    def format_options(self, ctx, formatter):
        asked = ctx.meta.get(USUAL, ALL)
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        shown = [each for each in options if asked != USUAL or each.name in self._usual]
        texts = {each.name: _line(each, ctx) if asked == USUAL else each.get_help_record(ctx) for each in shown}
        records = {name: (f"{text[0]:{TERMS[asked == USUAL]}}", text[1]) for name, text in texts.items() if text}
        for title, names in self._sections.items():
            rows = [records.pop(name) for name in names if name in records]
            _section(formatter, title, rows if asked in (USUAL, ALL, title) else [])
        if asked == ALL:
            _section(formatter, "Other options", list(records.values()))
        elif asked == USUAL:
            formatter.write_paragraph()
            formatter.write_text(f"More: --help all, or --help SECTION, one of {', '.join(self._titles)}.")


def _line(option: click.Option, ctx) -> tuple[str, str]:
    """Return the flags of an option, and its choices or the first clause of its help, with the default if it fits."""
    words, _, default = (option.help or "").removesuffix("]").partition(" [default: ")
    metavar = option.make_metavar(ctx).strip("[]")
    clause = metavar if metavar.islower() else re.split(r"[.:;](?: |$)", words)[0]
    whole = f"{clause} [{default}]" if default else clause
    return ", ".join(sorted(option.opts, key=len)), whole if len(whole) <= LINE else clause


def _section(formatter, title: str, records: list) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


class Size(click.ParamType):
    """Bytes, or another large number, as in 64K or 1.5M."""

    name = "size"

    def __init__(self, low: int = 0):
        self._low = low

    def convert(self, value, param, ctx):
        try:
            number = value if isinstance(value, int) else size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return number if number >= self._low else self.fail(f"{value} is less than {self._low}", param, ctx)


class Iterations(click.ParamType):
    """A whole number of iterations, or epochs: 5ep."""

    name = "integer|epochs"

    def convert(self, value, param, ctx):
        try:
            return value if isinstance(value, int) or epochs(value) is not None else int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of iterations like 400 nor of epochs like 5ep", param, ctx)


class Listed(click.ParamType):
    """Several values of a kind, separated by commas."""

    def __init__(self, kind: click.ParamType):
        self.name, self._kind = f"{kind.name},...", kind

    def convert(self, value, param, ctx):
        return [self._kind.convert(part.strip(), param, ctx) for part in value.split(",")]


NUMBERS = Listed(click.INT)


class Fraction(click.ParamType):
    """A share, as 5% or 0.05."""

    name = "share"

    def convert(self, value, param, ctx):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", value) if isinstance(value, str) else None
        if not match:
            self.fail(f"{value!r} is not a share: write it as 5% or 0.05", param, ctx)
        return float(match[1]) / (100 if match[2] else 1)


class StrategyOption(click.Option):
    """``--sync``: its help lists the strategies of the catalogue, which is loaded for that alone."""

    def get_help_record(self, ctx):
        from ringtrain.exchange.catalogue import STRATEGIES

        rows = STRATEGIES.items()
        summaries = [", ".join([name, strategy.summary, *map(str, strategy.plugin_options)]) for name, strategy in rows]
        summaries += [f"{name}, {preset.summary}: {preset.flags}" for name, preset in PRESETS.items()]
        record, names = super().get_help_record(ctx), "|".join([*STRATEGIES, "PRESET"])
        return record and (f"--sync [{names}]", record[1].replace("STRATEGIES", "; ".join(summaries)))


def plugin_option(command):
    """Decorate a command with ``--plugin``, which is read before every other option: they may name what it adds."""
    help = "Python file with own layers, losses, strategies, schedules or optimizers; may be repeated. It runs as code."
    how: dict[str, Any] = {"multiple": True, "is_eager": True, "expose_value": False, "callback": _load_plugins}
    return click.option("--plugin", metavar="FILE.py", help=help, **how)(command)


def _load_plugins(ctx, param, paths):
    if paths:
        from ringtrain.plugin import load_plugins

        load_plugins(paths)


def run_flags(*names: str, hidden: Collection[str] = ()):
    """Return a decorator of a command: the flags of these options of a run; a flag that is not given is None.
    ``hidden``: options that the help does not show."""

    def decorate(command):
        for name in reversed(names):
            command = _run_option(config_fields()[name], hidden=name in hidden)(command)
        return command

    return decorate


train_flags = run_flags(*config_fields())
layout_flags = run_flags("layout", "ignore_label")


def train_sections() -> dict[str, list[str]]:
    """Return the sections of the help of `ringtrain train`, for :class:`Sectioned`."""
    sections: dict[str, list[str]] = {title: [] for title in SECTIONS}
    sections["Model"] += ["run_file", "plugin"]
    for name, spec in config_fields().items():
        sections[spec.metadata["section"]].append(name)
    return sections


def explicit_flags(flags: dict) -> dict:
    return {name: value for name, value in flags.items() if value not in (None, ())}


def _run_option(spec, hidden: bool):
    flag = as_flag(spec.name)
    default, help = spec.default, _help(spec)
    kind: type | click.ParamType = kind_of(spec)
    if default == () and not spec.metadata["epochs"]:
        return click.option(flag, spec.name, multiple=True, metavar="NAME=VALUE", help=help, hidden=hidden)
    if kind is bool:
        both = f"{flag}/{as_flag('no_' + spec.name)}"
        return click.option(both, spec.name, default=None, help=help, hidden=hidden)
    if isinstance(spec.metadata["choices"], list):  # resolve() checks it
        kind = click.STRING
    elif spec.metadata["choices"]:
        kind = click.Choice(spec.metadata["choices"])
    elif spec.metadata["size"]:
        kind = Size()
    elif spec.metadata["epochs"]:
        kind = Listed(Iterations()) if default == () else Iterations()
    names = [flag] + ([f"-{spec.metadata['short']}"] if spec.metadata["short"] else [])
    shown = {"metavar": f"[{'|'.join(spec.metadata['choices'])}]"} if kind is click.STRING else {}
    bare = {} if spec.metadata["bare"] is None else {"is_flag": False, "flag_value": spec.metadata["bare"]}
    cls = StrategyOption if spec.name == "sync" else click.Option
    return click.option(*names, spec.name, cls=cls, type=kind, default=None, help=help, hidden=hidden, **bare, **shown)


def _help(spec) -> str:
    """Return the help text of an option, with its default."""
    words, bracket, shown = spec.metadata["help"].removesuffix("]").partition(" [")
    if not bracket and spec.default not in (None, ()):
        shown = _plain(spec.default)
    return f"{words} [default: {shown}]" if shown else words


def _plain(value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ── of measuring commands ─────────────────────────────────────────────────────────────────────────────────────────────
KINDS: dict[str, click.ParamType] = {
    "bytes": Size(),
    "bytes,...": Listed(Size()),
    "share": Fraction(),
    "path": click.Path(),
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
