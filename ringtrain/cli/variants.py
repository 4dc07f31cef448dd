"""Variants of a training as a user writes them: strategies with options, or options with a name."""

import re
import shlex
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import click

from ringtrain.cli.hints import hint
from ringtrain.cli.options import explicit_flags
from ringtrain.cli.train import train
from ringtrain.config.record import TrainConfig
from ringtrain.errors import UsageError
from ringtrain.train.options import read_options
from ringtrain.train.start.variants import Variant


def variants_of(common: tuple[str, ...], strategies: tuple[str, ...], variants: tuple[str, ...]) -> list:
    """Return the variants, without folders. Raises UsageError with the name of the wrong variant."""
    return [_variant(name, [*common, *words]) for name, words in named_variants(strategies, variants)]


def named_variants(strategies: tuple[str, ...], variants: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Return the name of each variant and its options. Raises UsageError."""
    # Split at commas, but not before a number, which continues a list: "allreduce --lr-steps 100,200,delayed".
    items = [item.strip() for listed in strategies for item in re.split(r",(?!\s*\d)", listed)]
    named = [(text, ["--sync", *_words(text, text)]) for text in items]
    named += [_named(text) for text in variants]
    for k, (name, _) in enumerate(named):
        if name in [other for other, _ in named[:k]]:
            raise UsageError(f"variant {name!r} is there twice: give one of them other options or another name")
    return named


def _named(text: str) -> tuple[str, list[str]]:
    name, colon, options = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f'--variant {text!r} has no name: write it as "large: --batch 256 --lr 0.1"')
    return name.strip(), _words(name.strip(), options)


def _words(name: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"variant {name!r}: {text!r} is not a list of options ({error})") from None
    if not words:
        where = f"--variant {name!r} has no options" if name else "--sync has nothing before or after a comma"
        raise UsageError(f"{where}: leave it out, or add options")
    return words


def _variant(name: str, words: list[str]):
    try:
        flags = dict(train.make_context("train", words).params)
    except click.ClickException as error:
        raise UsageError(f"variant {name!r}: {hint(error) or error.format_message()}") from None
    if flags["out"] is not None:
        raise UsageError(
            f"variant {name!r}: compare names the folders, not --out {flags['out']}: put --out before the --"
        )
    return Variant(name, flags.pop("run_file"), explicit_flags(flags))


def seeded(variants: list, count: int) -> tuple[list, dict[str, str]]:
    """Return (each variant with ``count`` seeds from its own one on, {name of a run: name of its variant}): all
    variants with one seed, then with the next, so that a change of the machine's speed meets all alike.
    """
    configs = [read_options(variant.run_file, variant.flags).config for variant in variants]
    first = [config.run.seed if isinstance(config, TrainConfig) else 0 for config in configs]  # errors are raised later
    runs, variant_of = [], {}
    for k in range(count):
        for variant, seed in zip(variants, (k + seed for seed in first), strict=True):
            name = f"{variant.name}, seed {seed}"
            runs.append(replace(variant, name=name, flags={**variant.flags, "seed": seed}))
            variant_of[name] = variant.name
    return runs, variant_of


def folders_of(parent: str, asked: list) -> list[str]:
    """Return a folder for each variant, named like it."""
    names: list[str] = []
    for variant in asked:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", variant.name).strip("-.") or "variant"
        numbered = (f"{stem}-{k}" for k in count(2))
        names.append(next(name for name in chain([stem], numbered) if name not in names))
    return [str(Path(parent) / name) for name in names]
