"""Trains several variants, one after another, in one set of ranks.

Each variant has a transport of its own, closed at its end, with its memory, windows, messages and guard.

After an error that all ranks raise together the next variant begins. Messages of the failed one may still be under way,
so its transport stays open and its memory allocated until the process ends. An error of one rank alone ends all, since
the others wait for that rank.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ringtrain.config.record import TrainConfig
from ringtrain.data.file.dataset import DataSet
from ringtrain.errors import Interrupted, RingtrainError, everywhere
from ringtrain.nn.spec import ModelSpec
from ringtrain.template import Lines
from ringtrain.train.assembly.data import open_data
from ringtrain.train.assembly.images import transform_of
from ringtrain.train.options import read_options
from ringtrain.train.start.open_run import open_run
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.train.start.start import run_training
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.agree import together
from ringtrain.transport.base import Transport
from ringtrain.transport.world import remove_segments

Connect = Callable[[], Transport]


@dataclass(frozen=True, slots=True)
class Variant:
    """One training: its name, a run file or None, flags with its folder as ``out``."""

    name: str
    run_file: str | None
    flags: Mapping


@dataclass(frozen=True, slots=True)
class VariantResult:
    """A variant, and the text of its error or None."""

    variant: Variant
    problem: str | None


# ── before anything is run ────────────────────────────────────────────────────────────────────────────────────────────
def check_variants(connect: Connect, variants: Sequence[Variant]) -> None:
    """Assemble each variant, on data that are read once. Collective. Raises RingtrainError with the variant's name."""
    shared = connect()  # for the data
    opened: dict[tuple, DataSet] = {}
    for variant in variants:
        transport = connect()
        try:
            _check(transport, shared, variant, opened)
        except RingtrainError as error:
            if error.everywhere:
                raise everywhere(type(error)(Lines(f"variant {variant.name!r}: {error}"))) from error
            raise
        transport.close()
    opened.clear()
    shared.close()


def _check(transport: Transport, shared: Transport, variant: Variant, opened: dict) -> None:
    def read(config: TrainConfig, model: ModelSpec, transport: Transport) -> DataSet:
        return together(transport, lambda: _data(config, model, shared, opened))

    options = read_options(variant.run_file, variant.flags)
    run, *_ = open_run(transport, options, None, RecoveryState(), False, read)
    run.close()


def _data(config: TrainConfig, model: ModelSpec, transport: Transport, opened: dict) -> DataSet:
    of_model = (model.text, config.run.batch, config.run.seed) if config.data.synthetic else ()
    of_images = (config.data.resize, transform_of(config.data, model), model.input.shape)
    of_data = (
        config.data.data,
        config.data.test_data,
        config.data.stream,
        config.data.data is None and config.model.model,
    )
    key = (*of_data, *of_model, *of_images)
    if key not in opened:
        opened[key] = open_data(config, model, transport)
    return opened[key]


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def run_variants(
    transport: Transport,
    connect: Connect,
    variants: Sequence[Variant],
    begun: Callable[[Variant], None],
    ended: Callable[[list[VariantResult]], None],
) -> list[VariantResult]:
    """Train each variant; the results of those that began. Collective. All end early if a rank has to stop.

    begun, ended: called with each variant, and with all results up to its end; on every rank
    Raises an error of one rank alone, with the name of the variant.
    """
    ran: list[VariantResult] = []
    kept: list[tuple[Transport, RingtrainError]] = []  # of failed variants: an error refers to its run's memory
    stop = StopFlag().install()
    if transport.size == 1:
        stop.end_all = lambda code: remove_segments()
    try:
        for variant in variants:
            if any(transport.gather_json(stop())):
                break
            begun(variant)
            variant_transport = connect()
            error = _trained(variant_transport, variant, stop)
            if error is None:
                variant_transport.close()
            else:
                kept.append((variant_transport, error))
            ran.append(VariantResult(variant, None if error is None else str(error)))
            gc.collect()
            ended(ran)
            if isinstance(error, Interrupted):
                break
    finally:
        stop.remove()
    return ran


def _trained(transport: Transport, variant: Variant, stop: StopFlag) -> RingtrainError | None:
    try:
        run_training(transport, read_options(variant.run_file, variant.flags), stop)
    except RingtrainError as error:
        if error.everywhere:
            return error
        ended = f"This ended variant {variant.name!r}, and those after it are not run"
        raise type(error)(Lines(f"{error}\n{ended}")) from error
    return None
