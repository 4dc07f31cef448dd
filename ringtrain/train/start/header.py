"""Describes a run before its first iteration."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from ringtrain import __version__, plugin
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.presets import PRESETS
from ringtrain.config.record import OptimizerConfig
from ringtrain.exchange.base import Exchange
from ringtrain.launch.slurm.job_end import job_number
from ringtrain.nn.shapes import element_count
from ringtrain.nn.spec import OutputSpec
from ringtrain.optim.catalogue import OPTIMIZERS
from ringtrain.optim.optimizers import TRUST_COEFFICIENT
from ringtrain.report.events import RunStarted
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.assembly import batch_norm, reproducible
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.recipe import best_by_of, schedule_notes, schedule_words
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.checkpoints.state import rank_notes
from ringtrain.transport.base import Transport
from ringtrain.transport.launch_environment import APART

LARGE_TARGET = 10.0  # a mean or a deviation; outputs of a network that was just drawn are about 1
PACKAGES = ("numpy", "mpi4py", "h5py", "torch", "cupy-cuda12x", "cupy-cuda13x")


def header(run: Assembly, origin: Origin, folder: RunFolder | None) -> RunStarted:
    """The first record of the run. Collective."""
    config, exchange, transport = run.config, run.exchange, run.transport
    return RunStarted(
        version=__version__,
        model=run.model.name,
        parameters=sum(span.count for span in run.arena.spans if span.parameter.role != "statistic"),
        data=run.data.name,
        train_examples=run.data.train.count,
        test_examples=run.data.test.count if run.data.test else 0,
        strategy=strategy_words(config.exchange, exchange),
        exact=exchange.facts.exact,
        ranks=transport.size,
        nodes=transport.nodes,
        device=run.ops.describe(),
        dtype=config.device.dtype,
        precision=config.device.precision,
        batch=run.sampler.batch,
        optimizer=_optimizer_words(config.optimizer),
        lr=run.rate.lr,
        schedule=schedule_words(config.optimizer, run.rate),
        epochs=None if config.run.iterations else run.iterations // run.sampler.iterations_per_epoch,
        iterations=run.iterations,
        iterations_per_epoch=run.sampler.iterations_per_epoch,
        resumed_at=origin.iteration or 0,
        seed=config.run.seed,
        folder=str(folder.path) if folder else None,
        reproducible=reproducible.describe_numerics(config.exchange, run.ops),
        best=origin.facts["best"] if origin.facts else None,
        best_by=best_by_of(config),
        loss=config.model.loss,
        metrics=list(run.metrics.names),
        accuracy=run.worker.passes.loss.accuracy,
        plugins=plugin.facts(),
        **provenance(transport),
    )


def provenance(transport: Transport) -> dict:
    """The place, time, command and versions of a run, as fields of :class:`RunStarted`. Collective."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hosts": transport.gather_json(transport.activity.host),
        "command": command_of(sys.argv),
        "versions": {"python": platform.python_version(), **versions_of(PACKAGES)},
        "mpi": transport.describe(),
        "job": job_number(os.environ),
    }


def command_of(argv: Sequence[str]) -> str:
    """The command line without ``mpirun`` and its options, which this process does not see."""
    name = Path(argv[0]).name
    return shlex.join(["ringtrain" if name == "__main__.py" else name, *argv[1:]])


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    versions = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def notes(run: Assembly, origin: Origin) -> list[str]:
    transport = run.transport
    skipped = origin.stored.skipped if origin.stored else ()
    notes = [*run.exchange.facts.notes, *(f"passed over: {problem}" for problem in skipped)]
    notes += run.data.notes
    notes += _far_targets(run)
    notes += rank_notes(run, origin.facts["ranks"] if origin.facts else {})
    notes += schedule_notes(run.config.optimizer, run.rate)
    notes += _frozen(run)
    if ghosts := batch_norm.partial_ghosts(run.config, run.graph):
        notes.append(ghosts)
    if transport.local_size > 1 and run.data.location == "private" and not run.config.data.synthetic:
        notes.append("every rank holds the data set itself: this MPI offers no shared memory of that size")
    if APART in transport.describe():
        notes.append(f"{APART}, not through memory: ringtrain doctor says what to do")
    if run.data.location == "streamed":
        notes.append(
            f"examples stay in their files, read ahead of their use; their order: --shuffle {run.sampler.shuffled}"
        )
    if run.guard is not None and run.guard.recorder.gap:
        notes.append(f"the guard does not see {run.guard.recorder.gap}")
    return notes


def _far_targets(run: Assembly) -> list[str]:
    """A note for targets of another scale than the outputs of a network that has just been drawn."""
    moments, loss = run.data.label_moments, run.worker.passes.loss
    if moments is None or loss.accuracy or run.model.output != OutputSpec() or np.abs(moments).max() <= LARGE_TARGET:
        return []
    mean, std = (f"{np.abs(each).max():.4g}" for each in moments)
    return [
        f'targets have means up to {mean} and deviations up to {std}: output = {{ mean = "channel", std = '
        '"channel" } in a copy of the model file standardises them, and predictions keep their unit'
    ]


def _frozen(run: Assembly) -> list[str]:
    parameters = [parameter for _, parameter in run.graph.parameters() if parameter.role != "statistic"]
    frozen = [parameter for parameter in parameters if parameter.frozen]
    if not frozen:
        return []
    numbers, all_numbers = (sum(element_count(each.shape) for each in some) for some in (frozen, parameters))
    return [
        f"--freeze {run.config.model.freeze}: {len(frozen)} of {len(parameters)} parameters are not trained, "
        f"{numbers:,} of {all_numbers:,} numbers"
    ]


def strategy_words(config: ExchangeConfig, exchange: Exchange) -> str:
    rounding = "" if config.wire == "none" else f", rounded to {config.wire} on the wire"
    facts = exchange.facts
    header = f" {facts.header}" if facts.header else ""
    algorithm = f" ({config.algorithm}{rounding})" if facts.all_reduces else ""
    preset = f"{config.sync}: " if config.sync in PRESETS else ""
    return f"{preset}{facts.name}{header}{algorithm}"


def _optimizer_words(config: OptimizerConfig) -> str:
    usual = OPTIMIZERS[config.optimizer].usual_momentum
    momentum = usual if config.momentum is None else config.momentum
    memory = f"momentum {momentum:g}"
    if config.optimizer in ("adamw", "adam", "lamb"):
        memory = f"beta1 {momentum:g}, beta2 {config.beta2:g}"
    elif config.optimizer == "rmsprop":
        memory = f"alpha {config.beta2:g}, momentum {momentum:g}"
    words = f"{config.optimizer}, {memory}, weight decay {config.weight_decay:g}"
    words += f", trust {config.trust_coefficient or TRUST_COEFFICIENT:g}" if config.optimizer == "lars" else ""
    words += f", gradient clipped to {config.clip_norm:g}" if config.clip_norm else ""
    return words + (f", weights averaged with decay {config.ema:g} for evaluations" if config.ema is not None else "")
