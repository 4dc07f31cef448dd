"""An option of a run: a field of a record, whose metadata says all that others know of it.

Every field is a flag and a key of a TOML run file. :mod:`ringtrain.config.resolve` merges the sources.
"""

from dataclasses import field
from types import UnionType
from typing import get_args

# The sections of `ringtrain train --help`, in their order.
SECTIONS = (
    "Model", "Data", "Images", "Batch and length", "Optimizer", "Learning rate", "Output and checkpoints",
    "Device and precision", "Strategy", "Model parallel", "Exchange of gradients", "Overlap with computing",
    "Reliability", "Diagnosis",
)  # fmt: skip
NEVER = 1_000_000_000  # iterations between what a run does at its end alone


def option(
    default, help, *, section, choices=None, low=None, above=None, below=None, high=None, short=None, bare=None,
    epochs=False, size=False, used_by=None, recipe=False, fixed=False, fixes_bits=False, once=False, planned=True,
    about_files=False,
):  # fmt: skip
    """Return a field with the properties of its flag: help text with its unit, the section of the help, and the
    accepted values.

    choices:    a list if plug-ins may add to it
    bare:       the meaning of the flag without a value
    epochs:     whether a number of iterations may be given in epochs, as the text "5ep", which becomes iterations once
                the data are known
    size:       whether it is a number as 64K or 1.5M, in text
    used_by:    (another option, its values): nothing else uses this one. Options of strategies are in their catalogue
    recipe:     whether a model file's recipe may have it: it says how to train the model, and not where
    fixed:      whether a resumed run must keep it: it decides the order of examples, the optimizer's state or the order
                in which gradients are added. The model is also compared layer by layer, and the data by checksum
    fixes_bits: whether a reproducible run must keep it too: it decides the bits of a product
    once:       whether it is of one start of a run, and not passed to its continuation
    about_files: whether it is about files, and changes no result
    planned:    whether `ringtrain plan` knows how it changes the speed of a training, if it does
    """
    metadata = {name: value for name, value in locals().items() if name != "default"}
    return field(default=default, metadata=metadata)


def flag(help, default=None, *, name=None, short=None, kind=None, low=None, choices=None, metavar=None):
    """Return a field of the options of a command, with the properties of its flag: help text and accepted values.

    name: of the flag, in place of the field's
    kind: the form of its text, if the annotation does not say it (``KINDS`` of :mod:`ringtrain.cli.options`)
    """
    metadata = {name: value for name, value in locals().items() if name != "default"}
    return field(default=default, metadata=metadata)


def as_flag(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def typed(name: str, value) -> str:
    """Return an option as typed with its value."""
    return as_flag(name) if value is True else f"{as_flag(name)} {value}"


def kind_of(spec) -> type:
    """Return the scalar type of a field annotated ``T`` or ``T | None``."""
    return get_args(spec.type)[0] if isinstance(spec.type, UnionType) else spec.type
