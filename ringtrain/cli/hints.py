"""Answers to a wrong command line: click's message, or ringtrain's name of another tool's option."""

import re
from collections.abc import Sequence

import click

from ringtrain.errors import nearest, plain
from ringtrain.template import Lines, joined

UNKNOWN_COMMAND = "no command {name!r}; {hint}"
# ringtrain's option, and its names in torchrun, timm, Keras, Lightning, Horovod, nccl-tests and earlier versions of
# ringtrain. The first option of the command with the other name is proposed.
NAMES = {
    "--batch": ("--batch-size", "--batchsize", "--bs", "-bs", "--global-batch-size", "--train-batch-size"),
    "--lr": ("--learning-rate", "-lr", "--base-lr"),
    "--lr-policy": ("--scheduler", "--sched", "--lr-scheduler", "--lr-schedule"),
    "--lr-steps": ("--milestones", "--decay-milestones", "--lr-milestones"),
    "--lr-gamma": ("--gamma", "--decay-rate", "--lr-decay"),
    "--warmup": ("--warmup-steps", "--warmup-iters", "--warmup-iterations"),
    "--warm-up": ("--warmup", "--warmup-iters"),
    "--epochs": ("--num-epochs", "--max-epochs", "--n-epochs", "--num-train-epochs", "-e"),
    "--iterations": ("--steps", "--max-steps", "--iters", "--num-steps", "--max-iter", "--max-iters"),
    "--accumulate": ("--gradient-accumulation-steps", "--grad-accum-steps", "--accumulation-steps", "--accum-iter"),
    "--optimizer": ("--opt", "--optim", "--solver"),
    "--weight-decay": ("--wd", "-wd", "--l2"),
    "--clip-norm": ("--clip-grad", "--clip-grad-norm", "--max-grad-norm", "--gradient-clip-val", "--grad-clip"),
    "--ema": ("--model-ema", "--ema-decay", "--model-ema-decay"),
    "--min-lr": ("--eta-min", "--lr-min"),
    "--eps": ("--opt-eps", "--epsilon"),
    "--early-stop": ("--patience", "--early-stopping", "--early-stopping-patience"),
    "--label-smoothing": ("--smoothing",),
    "--momentum": ("--beta1", "--mom"),
    "--seed": ("--random-seed", "--manual-seed", "--rng-seed"),
    "--model": ("--arch", "-arch", "--network", "--net", "--model-name"),
    "--data": ("--data-dir", "--data-path", "--dataset", "--data-root", "--train-data", "-d"),
    "--threads": ("--num-threads", "--omp-num-threads", "--nthreads"),
    "--algorithm": ("--algo", "--allreduce"),
    "--bucket-bytes": ("--bucket-size", "--bucket-cap-mb", "--fusion-threshold-mb"),
    "--checkpoint-every": ("--save-every", "--save-freq", "--save-interval", "--checkpoint-interval", "--save-steps"),
    "--evaluate-every": ("--eval-every", "--eval-freq", "--eval-interval", "--eval-steps", "--val-check-interval"),
    "--keep": ("--save-total-limit", "--checkpoint-hist", "--keep-checkpoints"),
    "--resume": ("--checkpoint", "--ckpt", "--ckpt-path", "--resume-from", "--resume-from-checkpoint", "--restore"),
    "--out": ("--output", "--output-dir", "--save-dir", "--log-dir", "--logdir", "--run-dir"),
    "--output": ("--out",),
    "--trace": ("--profile", "--timeline", "--profiler"),
    "--begin": ("--minbytes", "--min-bytes"),
    "--end": ("--maxbytes", "--max-bytes"),
    "--factor": ("--stepfactor",),
    "--check-collectives": ("--guard",),
    "--no-check-collectives": ("--no-guard",),
    "--inject-slowdown": ("--slow",),
    "--trust-coefficient": ("--trust",),
    "--gossip-max-lag": ("--gossip-window",),
    "--nodes": ("--nnodes", "--num-nodes"),
    "--gpus": ("--gpus-per-node", "--gres", "--num-gpus"),
    "--ranks-per-node": ("--ntasks-per-node", "--tasks-per-node", "--nproc-per-node", "--ppn", "--np", "-np"),
}  # fmt: skip
VALUED = {
    "--device cuda": ("--gpu", "--gpus", "--cuda", "--num-gpus", "--gpu-id", "--accelerator"),
    "--device cpu": ("--cpu", "--no-cuda"),
    "--precision bfloat16": ("--amp", "--fp16", "--bf16", "--half", "--mixed-precision", "--use-amp"),
    "--warmup 5ep": ("--warmup-epochs",),
    "--no-augment": ("--no-aug",),
    "--wire float16": ("--fp16-allreduce",),
    "--batch-norm sync": ("--sync-bn", "--syncbn", "--sync-batchnorm"),
}
OPTION = re.compile(r"-[A-Za-z]+(?=[=\d.+-]|$)")  # before its value, where that is glued to it
RANKS = (
    "--np", "-np", "--nproc", "--nprocs", "--num-proc", "--nproc-per-node", "--world-size",
    "--ranks", "--ngpus", "-g", "--nnodes",
)  # fmt: skip
NEEDLESS = {
    ("--workers", "--num-workers", "-j", "--prefetch", "--pin-memory", "--dataloader-workers"):
        "there are none: the data set lies in memory, and each rank takes its batches from there",
    ("--local-rank", "--rank", "--node-rank", "--master-addr", "--master-port", "--dist-url",
     "--dist-backend", "--rdzv-endpoint", "--rdzv-backend", "--rdzv-id", "--init-method"):
        "the MPI numbers the ranks and connects them: start with mpirun or srun, and leave it out",
    ("--shuffle", "--no-shuffle"): "each epoch has a random order of its own, by --seed",
    ("--num-classes", "--classes"): "the model file sets it: `units` of its last layer",
    ("--fc-update",): "fully connected ranks update once an iteration",
    ("--fc-in-flight",): "two micro-batches of a rank are under way at once",
    ("--trace-iterations",): "a trace is of the sixth to the eighth iteration of a start",
    ("--pretrained",): "there are no pretrained weights; --resume continues from a checkpoint of yours",
    ("--deterministic", "--cudnn-deterministic"): "give --reproducible: the same bits at any number of ranks",
}  # fmt: skip


class CommandGroup(click.Group):
    """A group that proposes the nearest command for an unknown one."""

    def get_command(self, ctx, name):
        command = super().get_command(ctx, name)
        if command is None:
            raise click.UsageError(UNKNOWN_COMMAND.format(name=name, hint=nearest(name, self.commands)), ctx)
        return command


def in_words(error: click.ClickException, arguments: Sequence[str] = ()) -> str:
    """Return click's message, or ringtrain's name of the option; and the usage of the command."""
    context = getattr(error, "ctx", None)
    if context is None:
        return plain(error.format_message())
    text = hint(error, arguments) or plain(error.format_message())
    return joined([text, Lines(context.get_usage()), f"Try '{context.command_path} --help' for help."])


def hint(error: click.ClickException, arguments: Sequence[str]) -> str | None:
    """Return ringtrain's name of another tool's option; None for any other mistake."""
    asked = _asked(error, arguments)
    if asked is None or not isinstance(error, click.UsageError) or error.ctx is None:
        return None
    command = error.ctx.command
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    answer = None if asked in known else _elsewhere(asked.replace("_", "-"), known, command.name or "")
    return answer and f"No such option '{asked}': {answer}"


def _asked(error: click.ClickException, arguments: Sequence[str]) -> str | None:
    """Return the option as written: for `-lr 0.1` click reports `-l`, and for `-bs 32` a wrong value of `-b`."""
    if isinstance(error, click.NoSuchOption):
        names = [error.option_name]
    elif isinstance(error, click.BadParameter) and error.param is not None:
        names = error.param.opts
    else:
        return None
    written = [match[0] for match in map(OPTION.match, arguments) if match]
    short = tuple(name for name in names if len(name) == 2)
    whole = [word for word in written if short and word.startswith(short) and len(word) > 2]
    return whole[0] if whole else getattr(error, "option_name", None)


def _elsewhere(asked: str, known: set[str], command: str) -> str | None:
    for words, answer in NEEDLESS.items():
        if asked in words:
            return answer
    for name, others in (NAMES | VALUED).items():
        if asked in others and name.split()[0] in known:
            return f"use {name}"
    if asked in RANKS:
        return f"mpirun starts the ranks: mpirun -np 2 ringtrain {command}"
    return None
