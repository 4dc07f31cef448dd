"""Flags made from the fields of a configuration record: every flag is a key of a run file and the reverse."""

import click

from ringtrain.config import config_fields, default_of, kind_of


class Numbers(click.ParamType):
    """Whole numbers, separated by commas."""

    name = "integer,..."

    def convert(self, value, param, ctx):
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers like 4000,5000", param, ctx)


def flags_of(kind):
    """Decorate a command with one option for each field of ``kind``; an option that is not given is None."""

    def decorate(command):
        for spec in reversed(config_fields(kind).values()):
            command = _option(spec)(command)
        return command

    return decorate


def given(flags: dict) -> dict:
    """The flags that the user gave."""
    return {name: value for name, value in flags.items() if value is not None}


def _option(spec):
    name = spec.name.replace("_", "-")
    default, kind = default_of(spec), kind_of(spec)
    help = spec.metadata["help"]
    if kind is bool:
        shown = "on" if default else "off"
        return click.option(f"--{name}/--no-{name}", spec.name, default=None, help=f"{help} [{shown}]")
    if default not in (None, ()):
        help = f"{help} [{default}]"
    if spec.metadata["choices"]:
        kind = click.Choice(spec.metadata["choices"])
    elif default == ():
        kind = Numbers()
    names = [f"--{name}"] + ([f"-{spec.metadata['short']}"] if spec.metadata["short"] else [])
    bare = {} if spec.metadata["bare"] is None else {"is_flag": False, "flag_value": spec.metadata["bare"]}
    return click.option(*names, spec.name, type=kind, default=None, help=help, **bare)
