"""What a run says of itself before its first iteration."""

from ringtrain import __version__
from ringtrain.config import TrainConfig
from ringtrain.data.sampler import largest_share
from ringtrain.exchange.base import Exchange
from ringtrain.ops.base import Ops
from ringtrain.report.events import RunStarted
from ringtrain.train import norms, reproducible
from ringtrain.train.assemble import Assembly
from ringtrain.train.provenance import provenance
from ringtrain.train.recipe import accumulate_notes, hyper_of, schedule_notes, schedule_words
from ringtrain.train.resume import Origin
from ringtrain.transport.base import Transport


def header(run: Assembly, ops: Ops, transport: Transport, origin: Origin, folder) -> RunStarted:
    """Collective."""
    config, exchange = run.config, run.exchange
    return RunStarted(
        version=__version__,
        model=run.model.name,
        parameters=sum(span.count for span in run.arena.spans if span.parameter.role != "statistic"),
        data=run.data.name,
        train_examples=run.data.train.count,
        test_examples=run.data.test.count if run.data.test else 0,
        strategy=_strategy_words(config, exchange),
        exact=exchange.exact,
        ranks=transport.size,
        nodes=transport.nodes,
        device=ops.describe(),
        dtype=config.dtype,
        precision=config.precision,
        batch=run.sampler.batch,
        optimizer=_optimizer_words(config),
        lr=run.rate.lr,
        schedule=schedule_words(config, run.rate),
        epochs=None if config.iterations else run.iterations // run.sampler.iterations_per_epoch,
        iterations=run.iterations,
        iterations_per_epoch=run.sampler.iterations_per_epoch,
        resumed_at=origin.iteration or 0,
        seed=config.seed,
        folder=str(folder.path) if folder else None,
        reproducible=reproducible.words(config, ops),
        best=origin.place["best"] if origin.place else None,
        **provenance(transport),
    )


def notes(run: Assembly, transport: Transport, origin: Origin) -> list[str]:
    """What the user should know besides."""
    notes = [*run.exchange.notes, *(f"passed over: {text}" for text in (origin.found.skipped if origin.found else ()))]
    notes += schedule_notes(run.config, run.rate)
    own = largest_share(run.config.batch, len(run.roles.trainers), run.grain)
    notes += accumulate_notes(run.config, own, run.grain)
    notes += filter(None, [norms.words(run.config), norms.smaller(run.config, run.graph)])
    if transport.local_size > 1 and run.data.held == "private" and not run.config.synthetic:
        notes.append("every rank holds the data set itself: this MPI offers no shared memory of that size")
    if run.guard is not None and run.guard.gap:
        notes.append(f"the guard does not see {run.guard.gap}")
    return notes


def _strategy_words(config: TrainConfig, exchange: Exchange) -> str:
    rounding = "" if config.wire == "none" else f", rounded to {config.wire} on the wire"
    terms = f" {exchange.terms}" if exchange.terms else ""
    return f"{exchange.name}{terms}" + (f" ({config.algorithm}{rounding})" if exchange.all_reduces else "")


def _optimizer_words(config: TrainConfig) -> str:
    corrected = " corrected" if config.momentum_correction else ""
    memory = f"momentum {config.momentum:g}{corrected}"
    if config.optimizer in ("adamw", "lamb"):
        memory = f"beta1 {config.momentum:g}, beta2 {config.beta2:g}"
    words = f"{config.optimizer}, {memory}, weight decay {config.weight_decay:g}"
    words += f", trust {hyper_of(config).trust:g}" if config.optimizer == "lars" else ""
    words += f", trust ratio at most {config.trust_limit:g}" if config.trust_limit else ""
    return words + (f", gradient clipped to {config.clip_norm:g}" if config.clip_norm else "")
