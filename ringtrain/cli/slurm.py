"""The command ``ringtrain slurm``."""

import os
import shutil
from dataclasses import fields, replace
from pathlib import Path

import click

from ringtrain.cli.bench_allreduce import bench_allreduce
from ringtrain.cli.options import Sectioned, explicit_flags, flags_of
from ringtrain.cli.train import train
from ringtrain.data.batches.sampler import Sampler
from ringtrain.data.file.dataset import SplitShape, read_form
from ringtrain.data.file.grammar import Layout, is_here
from ringtrain.data.image_files.open import accepts
from ringtrain.errors import ConfigError, UsageError
from ringtrain.exchange.buckets.reproducible import check_ranks
from ringtrain.launch.slurm.script import BatchJob, SiteOptions, check_job, script
from ringtrain.nn.losses import check_output, make_loss
from ringtrain.show.output import complain, echo, echo_file
from ringtrain.storage import files
from ringtrain.train.assembly import batch_norm
from ringtrain.train.assembly.assemble import check_batch
from ringtrain.train.assembly.data import check_images
from ringtrain.train.assembly.device import check_device
from ringtrain.train.assembly.recipe import check_warmup, iterations_of, rate_of
from ringtrain.train.checkpoints.resume import Origin, resolve_run
from ringtrain.train.options import read_options

SECTIONS = {
    "The job": ["nodes", "gpus", "ranks_per_node", "cpus_per_task", "memory", "time", "name"],
    "The site": ["partition", "account", "qos", "sbatch", "modules", "venv", "container", "launcher"],
    "The script": ["output", "force"],
}
NOT_HERE = "there is no {path} here: make sure that the nodes have it"
MANY = 1 << 40  # examples of a data set that is missing here: two steps in epochs are never the same iteration


@click.command(cls=Sectioned, sections=SECTIONS)
@flags_of(BatchJob)
@flags_of(SiteOptions)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the script to this file. [to the terminal]"
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.argument("words", metavar="[train|bench|run] [-- FLAGS...]", nargs=-1, type=click.UNPROCESSED)
def slurm(output, force, words, **options):
    """Write a batch script for Slurm, and submit nothing.

    \b
    ringtrain slurm --nodes 2 --gpus 4 --time 4:00:00 -- --model resnet20 --data cifar10.h5 --batch 256 --device cuda
    ringtrain slurm bench --nodes 2 --ranks-per-node 8 --output bench.sbatch -- --end 64M
    ringtrain slurm run --nodes 2 --ranks-per-node 8 -- python -m ringtrain.torch train.py --epochs 90

    train (the default) makes a run that stops before the limit, is queued again and survives the death of a node;
    bench measures and tunes the all-reduce. FLAGS, after --, are those of `ringtrain train` or
    `ringtrain bench-allreduce`. They are checked now, and so is the data set if it is readable here.
    run does as train with any command of ranks, after --, which gets SIGUSR1 before the limit, and ends with 75 once it
    has saved a checkpoint.
    """
    named = bool(words) and not words[0].startswith("-")
    kind, flags = (words[0], words[1:]) if named else ("train", words)
    site = SiteOptions(
        **{option.name: options.pop(option.name) for option in fields(SiteOptions) if option.name in options}
    )
    job = BatchJob(kind=kind, flags=flags, site=site, **options)
    check_job(job)
    job, remarks = _check_flags(job)
    text = script(job)
    for remark in remarks:
        complain(remark)
    if output is None:
        echo_file(text)
    else:
        _write(output, text, force)
        echo(f"{output} is written: submit it with sbatch {output}")


def _write(path: Path, text: str, force: bool) -> None:
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} exists already: name another with --output, or replace it with --force")
    files.write(path, text.encode())
    path.chmod(0o755)


def _check_flags(job) -> tuple:
    """Return (the job with the launcher's flags that the run needs, notes on the flags). Raises UsageError and click's
    errors."""
    if job.kind == "run":
        return job, list(_missing(job))
    if job.kind == "bench":
        _parsed(bench_allreduce, job.flags)
        return job, []
    config = _check_run(job, _parsed(train, job.flags))
    if config.exchange.elastic is not None:
        job = replace(job, site=replace(job.site, launcher_flags="--with-ft ulfm"))
    return job, list(_remarks(job, config))


def _parsed(command, flags: tuple[str, ...]) -> dict:
    return command.make_context(f"ringtrain {command.name}", list(flags)).params


def _check_run(job, params: dict):
    options = read_options(params.pop("run_file"), explicit_flags(params))
    config, model = resolve_run(Origin(), options)
    check_device(config.device)
    graph = batch_norm.with_ghost_batches(config.model.batch_norm, model.graph(), model.name)
    if config.exchange.reproducible and job.ranks is not None:
        check_ranks(job.ranks, config.exchange.shards)
    if config.device.device == "cuda" and job.gpus is None:
        raise ConfigError("--device cuda, but the job asks for no GPUs: give --gpus, the number of a node")
    if config.data.data is None and not config.data.synthetic and model.name != "digits":
        raise ConfigError(f"model {model.name!r} has no data set of its own: give --data F.h5, or --synthetic")
    if config.exchange.elastic is not None and job.site.launcher == "srun":
        raise ConfigError("--elastic needs Open MPI's mpirun, but --launcher is srun: leave one of them out")
    examples = _checked_data(config, model, graph)
    # Every rank gets a part of a batch: known where the number of ranks that train is.
    all_train = job.ranks is not None and not config.exchange.dedicated and config.exchange.fc != "pipeline"
    grain = batch_norm.grain_of(config.model.batch_norm, graph, config.exchange.reproducible)
    check_batch(config, job.ranks if all_train else 1, grain, examples)
    _check_schedule(config, options.layers, examples)
    return config


def _check_schedule(config, layers, examples) -> None:
    """Check the schedule of the learning rate. Without the data set the length of an epoch is unknown, and checks that
    need it are left out, as for a resumed run, whose stored settings decide too."""
    if config.run.resume is not None and (config.run.resume != "auto" or os.path.lexists(config.run.out or "")):
        return
    steps = {type(step) for step in config.optimizer.lr_steps}
    if _is_far(config) and len(steps) > 1:
        return
    sampler = Sampler(MANY if _is_far(config) else examples.count, config.run.batch)
    rate = rate_of(config, iterations_of(config.run, sampler), sampler.iterations_per_epoch)
    in_epochs = config.run.iterations is None or isinstance(config.optimizer.warmup, str)
    if not (_is_far(config) and in_epochs):
        check_warmup(config, rate, layers)


def _is_far(config) -> bool:
    """Return whether the data set is missing on this machine, where the nodes may have it; or of image files, which
    are read in the job alone."""
    named = [name for name in (config.data.data, config.data.test_data) if name not in (None, "digits")]
    return any(accepts(name) or not is_here(name) for name in named)


def _checked_data(config, model, graph):
    """Return the shape of the training split after the checks of a run, without those of the images; a batch of
    examples if the data set is missing here."""
    if config.data.synthetic or _is_far(config):
        return SplitShape(config.run.batch, model.input.shape)
    layout = Layout(config.data.layout, config.data.ignore_label)
    data = read_form(config.data.data or "digits", config.data.test_data, len(model.input.shape), layout)
    check_images(model, data.name, data.train.shape)
    check_output(make_loss(config.model), graph, data)
    return data.train


def _missing(job):
    """Yield a note for what this machine lacks of a command: the container, or its program, and its script."""
    yield from _missing_container(job)
    if job.site.container is None and job.site.venv is None and shutil.which(job.flags[0]) is None:
        yield NOT_HERE.format(path=job.flags[0])
    script = next((word for word in job.flags[1:] if word.endswith(".py")), None)
    if script is not None and not os.path.exists(script):
        yield NOT_HERE.format(path=script)


def _remarks(job, config):
    if job.gpus is not None and config.device.device == "cpu":
        yield "the job asks for GPUs, but the run does not use them: add --device cuda"
    if _is_far(config):
        yield NOT_HERE.format(path=config.data.data)
    if config.exchange.elastic is not None:
        yield "--elastic: `mpirun --with-ft ulfm` starts the ranks, which needs Open MPI 5 on the nodes"
    yield from _missing_container(job)


def _missing_container(job):
    if job.site.container is not None and not os.path.exists(job.site.container):
        yield NOT_HERE.format(path=job.site.container)
