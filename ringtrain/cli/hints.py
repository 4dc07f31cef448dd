"""Answers to a wrong command line: click's message, or ringtrain's name of another tool's option."""

import click

from ringtrain.errors import nearest, plain
from ringtrain.template import Lines, joined

UNKNOWN_COMMAND = "no command {name!r}; {hint}"
# ringtrain's option, and its names in torchrun, timm, Keras and Lightning. The first one that the command has is
# proposed.
NAMES = {
    "--batch": ("--batch-size", "--bs", "--global-batch-size"),
    "--lr": ("--learning-rate", "-l"),
    "--lr-policy": ("--scheduler", "--sched", "--lr-scheduler"),
    "--epochs": ("--num-epochs", "--max-epochs"),
    "--iterations": ("--steps", "--max-steps", "--iters"),
    "--accumulate": ("--gradient-accumulation-steps", "--accumulation-steps"),
    "--optimizer": ("--opt", "--optim"),
    "--weight-decay": ("--wd",),
    "--clip-norm": ("--clip-grad", "--max-grad-norm", "--gradient-clip-val"),
    "--early-stop": ("--patience", "--early-stopping"),
    "--label-smoothing": ("--smoothing",),
    "--model": ("--arch",),
    "--data": ("--data-dir", "--data-path", "--dataset"),
    "--resume": ("--checkpoint", "--ckpt-path", "--resume-from-checkpoint"),
    "--out": ("--output", "--output-dir", "--save-dir", "--logdir"),
    "--device cuda": ("--gpu", "--cuda"),
    "--precision bfloat16": ("--amp", "--fp16", "--bf16"),
    "--batch-norm sync": ("--sync-bn",),
    "--nodes": ("--nnodes", "--num-nodes"),
    "--ranks-per-node": ("--ntasks-per-node", "--nproc-per-node"),
}
RANKS = ("-n", "--np", "--nproc-per-node", "--world-size", "-g", "--nnodes")
WORKERS = ("-j", "--workers", "--num-workers")
# Commands that ranks run together, as typed.
ON_RANKS = {name: f"ringtrain {name}" for name in ("train", "bench-allreduce", "tune", "doctor")}
ON_RANKS["launcher"] = "python -m ringtrain.torch"


class CommandGroup(click.Group):
    """A group that proposes the nearest command for an unknown one."""

    def get_command(self, ctx, name):
        command = super().get_command(ctx, name)
        if command is None:
            raise click.UsageError(UNKNOWN_COMMAND.format(name=name, hint=nearest(name, self.commands)), ctx)
        return command


def in_words(error: click.ClickException) -> str:
    """Return click's message, or ringtrain's name of the option; and the usage of the command."""
    context = getattr(error, "ctx", None)
    text = hint(error) or plain(error.format_message())
    if context is None:
        return text
    return joined([text, Lines(context.get_usage()), f"Try '{context.command_path} --help' for help."])


def hint(error: click.ClickException) -> str | None:
    """Return ringtrain's name of another tool's option; None for any other mistake."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    asked, command = error.option_name.replace("_", "-"), error.ctx.command
    known = {name for param in command.params for name in param.opts}
    names = [name for name, others in NAMES.items() if asked in others and name.split()[0] in known]
    if names:
        answer = f"use {names[0]}"
    elif asked in RANKS and command.name in ON_RANKS:
        answer = f"mpirun starts the ranks: mpirun -np 2 {ON_RANKS[command.name]}"
    elif asked in WORKERS and "--data" in known:
        answer = "there are none: the data set lies in memory, and each rank takes its batches from there"
    else:
        return None
    return f"No such option '{error.option_name}': {answer}"
