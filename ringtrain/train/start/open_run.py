"""Opens the parts of a run from its options. All ranks together find the errors here, before the run folder changes."""

import hashlib
import os
from collections.abc import Callable

from ringtrain import __version__, plugin
from ringtrain.allreduce.catalogue import AUTO
from ringtrain.allreduce.tuning_file import FoundTuning, find_tuning
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import to_table
from ringtrain.data.file.dataset import DataSet
from ringtrain.errors import UsageError
from ringtrain.monitor.guarded_transport import bare
from ringtrain.nn.spec import ModelSpec
from ringtrain.report.tensorboard import check_tensorboard
from ringtrain.train.assembly import reproducible
from ringtrain.train.assembly.assemble import Assembly, assemble
from ringtrain.train.assembly.data import read_data
from ringtrain.train.assembly.device import open_device
from ringtrain.train.assembly.initial_weights import InitialWeights, find_initial
from ringtrain.train.assembly.recipe import check_early_stop, check_warmup
from ringtrain.train.checkpoints.resume import Origin, check_continuation, find_origin, rate_words, resolve_run
from ringtrain.train.options import RunOptions
from ringtrain.train.start.recovery_state import RecoveryState, check_elastic, for_devices
from ringtrain.train.stopping.reasons import JobEnd, check_stop, find_job_end
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.agree import agree, on_root, together
from ringtrain.transport.base import Transport


def open_run(
    transport: Transport,
    options: RunOptions,
    stop: StopFlag | None,
    recovery: RecoveryState,
    only_run: bool,
    read: Callable[[TrainConfig, ModelSpec, Transport], DataSet] | None = None,
) -> tuple[Assembly, Origin, JobEnd, list[str]]:
    """Open a run: (its parts, its start, the end of the job, notes for the user). Collective; raises
    RingtrainError, the same on every rank.

    stop:     None if the run is checked, and does not begin
    only_run: whether this process makes no other run
    read:     opens its data in place of :func:`read_data`; collective
    """
    origin = recovery.origin or find_origin(transport, options)
    config, model = together(transport, lambda: resolve_run(origin, options))
    if recovery.lost:  # without a trace, whose iterations or ranks are gone
        config = config.changed(trace=None)
    agree(transport, _facts(config, model))
    together(transport, lambda: check_elastic(config.exchange, transport, only_run))
    if config.run.tensorboard:
        on_root(transport, check_tensorboard)
    end = JobEnd(None, 0.0)
    if stop is not None:
        stop.other = end = find_job_end(transport, config.run, os.environ)
    data = (read or read_data)(config, model, transport)
    together(transport, lambda: check_early_stop(config, data))
    if stop is not None and not recovery.unsaved:
        check_stop(transport, stop, origin.words)
    device = open_device(for_devices(config), bare(transport))  # the run makes a guard of its own
    reproducible.check_kernels(config.exchange, transport, device.ops)
    tuning = together(transport, lambda: tuning_of(config.exchange, transport, bool(recovery.lost)))

    initial = find_initial(transport, config.model, model) if origin.facts is None else None

    def build() -> Assembly:
        asked = stop or (lambda: False)
        return assemble(config, model, data, device.transport, device.ops, asked, tuning.table, initial)

    with transport.activity.during("preparing the run", limited=True):
        run = together(transport, build)
    transport.activity.deadline_s = config.exchange.deadline_s
    together(run.transport, lambda: check_warmup(config, run.rate, options.layers))
    together(run.transport, lambda: check_continuation(run, origin))
    jump = rate_words(run, origin)
    moved = reproducible.moved(config.exchange, device.ops, origin.facts["numerics"] if origin.facts else None)
    remarks = [
        *device.notes,
        *filter(None, [tuning.remark, moved, jump, end.words(), _initial_words(origin, options, initial)]),
    ]
    return run, origin, end, remarks


def _facts(config: TrainConfig, model: ModelSpec) -> dict:
    """The facts that all ranks must share before they open data together."""
    return {
        "ringtrain": __version__,
        "plug-ins": plugin.facts(),
        **to_table(config),
        "model file sha256": hashlib.sha256(model.text.encode()).hexdigest(),
    }


def _initial_words(origin: Origin, options: RunOptions, initial: InitialWeights | None) -> str | None:
    source = options.checked().model.init
    if origin.facts is not None:
        return (
            f"--init {source} is not used: the run goes on from its checkpoint, and has its weights" if source else None
        )
    words = initial.words if initial else None
    if not words or any(values.get("lr") is not None for _, values in options.layers):
        return words
    return f"{words}. Rate and warm-up are of training from scratch: fine-tune by a lower --lr and --warmup 0"


def tuning_of(config: ExchangeConfig, transport: Transport, after_death: bool = False) -> FoundTuning:
    """The measurements by which ``auto`` chooses. Collective. Raises UsageError for a file of other ranks, unless some
    have died."""
    if config.algorithm != AUTO:
        return FoundTuning(None)
    try:
        return find_tuning(transport, config.tuning)
    except UsageError as error:
        if not after_death:
            raise
        return FoundTuning(None, f"without --tuning from here on: {error}")
