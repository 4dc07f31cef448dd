"""The command line of ``python -m ringtrain.torch``."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import click

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.cli.hints import in_words
from ringtrain.cli.options import Sectioned, explicit_flags, flags_of, plugin_option, run_flags
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import as_flag
from ringtrain.config.resolve import FLAGS, config_fields, read_run_file, resolve
from ringtrain.errors import ConfigError, UsageError
from ringtrain.launch.printed_metrics import parse_metric
from ringtrain.launch.python_script import PART_PER_RANK, ScriptCommand, is_plain
from ringtrain.launch.reproducible import AVX2
from ringtrain.report.tensorboard import check_tensorboard

NAME = "python -m ringtrain.torch"
OF_SCRIPT = "a script of PyTorch has its own data, layers and restarts"
OPTIONS = tuple(spec.name for spec in fields(ExchangeConfig))
OF_COMMAND = tuple(spec.name for spec in fields(ScriptCommand) if spec.metadata)
# Options of an exchange that want what the script owns, and what to do instead.
REFUSED = {
    "fc": "its layers are placed by the script: leave it out",
    "fc_ranks": "its layers are placed by the script: leave it out",
    "dedicated": "every rank runs the script, and trains: leave it out",
}


def parse_script_command(arguments: Sequence[str]) -> ScriptCommand | str:
    """Return the command: options of the launcher, then the script with its own. The help if it is asked for. Raises
    UsageError, ConfigError.
    """
    try:
        context = _context_of(arguments)
    except click.ClickException as error:
        raise UsageError(in_words(error)) from None
    options = dict(context.params)
    words, is_module, run_file = options.pop("words"), options.pop("is_module"), options.pop("run_file")
    is_exact, batch = options.pop("exact_order"), options.pop("global_batch")
    if is_exact != (batch is not None):
        raise UsageError("--exact-order and --global-batch B, the examples of all ranks, go together: give both")
    log = {name: options.pop(name) for name in OF_COMMAND}
    log["metrics"] = tuple(map(parse_metric, log["metrics"]))
    if log["out"] is None and (log["tensorboard"] or log["metrics"] or log["profile"]):
        raise UsageError("--tensorboard, --metric and --profile are of a recorded run: give its folder by --out")
    if log["tensorboard"]:
        check_tensorboard()
    if options.pop("help"):
        return context.get_help()
    if not words:
        raise UsageError(
            "there is no script to run: python -m ringtrain.torch script.py, or -m module; --help shows the options"
        )
    layers = [(FLAGS, explicit_flags(options))]
    if run_file is not None:
        layers.insert(0, (f"run file {run_file}", read_run_file(run_file)))
    exchange = exchange_of(*layers)
    if log["isa"] != AVX2 and not exchange.reproducible:
        raise UsageError(f"--reproducible-isa {log['isa']} is of --reproducible: give both, or neither")
    if log["profile"] and not is_plain(exchange):
        raise ConfigError(
            f"--profile times computing, which is alike under every strategy: leave --sync {exchange.sync} and its "
            "options out, and ask `ringtrain plan --profile` for each"
        )
    deadline_s = exchange.deadline_s if any("deadline_s" in values for _, values in layers) else None
    return ScriptCommand(words[0], words[1:], is_module, deadline_s, exchange, **log, batch=batch)


def _context_of(arguments: Sequence[str]) -> click.Context:
    """Return the parsed arguments. Behind a bare ``--elastic`` click takes the script for its value: then it is spelt
    out. Raises ClickException."""
    words = list(arguments)
    try:
        return launcher.make_context(NAME, list(words))
    except click.BadParameter as error:
        if error.param is None or error.param.name != "elastic" or "--elastic" not in words:
            raise
    words[words.index("--elastic")] = "--elastic=shrink"
    return launcher.make_context(NAME, words)


def exchange_of(*layers: tuple[str, Mapping]) -> ExchangeConfig:
    """Return the exchange of (source, options) in order, as `ringtrain train` checks it. Raises UsageError, ConfigError
    for what a script cannot have."""
    for source, values in layers:
        for name in values:
            if name in config_fields() and name not in OPTIONS:
                raise ConfigError(f"{source}: {name} is an option of `ringtrain train`; {OF_SCRIPT}: leave it out")
    config = resolve(*((source, dict(values)) for source, values in layers))
    if config.exchange.reproducible and not any("shards" in values for _, values in layers):
        config = replace(config, exchange=replace(config.exchange, shards=PART_PER_RANK))
    if config.exchange == ExchangeConfig():
        return config.exchange
    from ringtrain.exchange.compatibility import check_options  # loads all strategies
    from ringtrain.exchange.parts import ROOT, parts_of

    check_options(config)
    default = ExchangeConfig()
    for name, instead in REFUSED.items():
        if getattr(config.exchange, name) != getattr(default, name):
            raise ConfigError(f"{as_flag(name)}: {OF_SCRIPT}; {instead}")
    parts = parts_of(config.exchange)
    if config.exchange.elastic is not None:
        _check_elastic(config.exchange)
    if parts.in_halves and config.exchange.algorithm != default.algorithm:
        raise ConfigError(
            f"--algorithm {config.exchange.algorithm}: --sync {config.exchange.sync} keeps a script's parameters "
            "whole, and sends each to its owner: leave --algorithm out"
        )
    if parts.partners == ROOT:
        raise ConfigError(
            f"--sync {config.exchange.sync}: rank 0 reads the data and computes the loss of all, and {OF_SCRIPT}: use "
            "--sync server, where rank 0 has the optimizer's state alone"
        )
    return config.exchange


def _check_elastic(config: ExchangeConfig) -> None:
    """Raise ConfigError for options with which the gradients of a step are not enough to go on from."""
    alone: dict[str, tuple] = {"sync": ("allreduce",), "compress": (NONE,), "overlap": ("none", "backward")}
    alone |= {"reproducible": (False,), "check_replicas": (None,)}
    for name, values in alone.items():
        if getattr(config, name) not in values:
            raise ConfigError(
                f"--elastic {config.elastic} and {as_flag(name)} {getattr(config, name)}: in a script of PyTorch "
                f"survivors redo an all-reduce of the step's gradients, and have no more: leave one of them out"
            )


def _sections() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for spec in fields(ExchangeConfig):
        if spec.name not in REFUSED:
            sections.setdefault(spec.metadata["section"], []).append(spec.name)
    return sections


@click.command(
    cls=Sectioned,
    sections=_sections(),
    add_help_option=False,  # every rank would print it
    options_metavar="[OPTIONS] [-m]",
    context_settings={"allow_interspersed_args": False, "max_content_width": 110},
)
@plugin_option
@run_flags(*OPTIONS, hidden=REFUSED)
@click.option(
    "--config", "run_file", type=click.Path(), help="TOML run file of these options; flags win over its keys."
)
@flags_of(ScriptCommand)
@click.option(
    "--exact-order",
    is_flag=True,
    help="Loaders that shuffle give the same examples in each step at any number of ranks, weighted by examples.",
)
@click.option("--global-batch", type=click.IntRange(1), metavar="B", help="Examples of all ranks in a step of it.")
@click.option("-m", "is_module", is_flag=True, help="A module follows, in place of a file.")
@click.option("-h", "--help", is_flag=True, help="Show this text.")
@click.argument("words", metavar="SCRIPT [ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def launcher(**options):
    """Run a script of PyTorch on every rank of an MPI, unmodified: its process groups of gloo and mpi become
    ringtrain's, and its DistributedDataParallel keeps ranks in step as these options say. Options stand before the
    script. --deadline-s is the timeout of the script's init_process_group unless it is given.

    \b
    mpirun -np 4 python -m ringtrain.torch train.py --epochs 3
    mpirun -np 4 python -m ringtrain.torch --sync averaging --average-every 32 train.py
    srun -n 4 python -m ringtrain.torch -m package.train --epochs 3
    """
