"""Tells the run folder of a script what PyTorch does: steps of optimizers, forward passes of DDP, waits, memory."""

import hashlib
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ringtrain.api.usable import LEAVING
from ringtrain.errors import UsageError
from ringtrain.launch.printed_metrics import SCORES, STEP, MetricLines
from ringtrain.launch.python_script import ScriptCommand
from ringtrain.report.events import BucketExchanged, RanksLost
from ringtrain.torch.strategy_ddp import ENGINES
from ringtrain.transport.base import Transport

if TYPE_CHECKING:
    from ringtrain.torch.step_profile import StepProfile
    from ringtrain.train.start.script_run import ScriptRun

queue_callback = Variable._execution_engine.queue_callback
_run: "ScriptRun | None" = None
_profile: "StepProfile | None" = None
_reducer_s: float | None = None  # for which DDP's own reducer has held up backward at its end
_memory = {"weights_bytes": 0, "gradient_bytes": 0, "state_bytes": 0}
_modules: WeakKeyDictionary = WeakKeyDictionary()  # in DDP, in the order in which they were wrapped
_optimizers: WeakKeyDictionary = WeakKeyDictionary()  # in the order of their first steps


def begin(
    command: ScriptCommand, transport: Transport, fixed: str | None = None, joins: tuple[str, int] | None = None
) -> None:
    """Record what the script does from now on, if it is asked for. ``fixed``: of a reproducible run. ``joins``: the
    :func:`folder_and_step` of the others' run, in a rank that joins them; without it collective."""
    global _run, _profile
    if command.out is None:
        return
    from ringtrain.train.start.script_run import ScriptRun  # loads all of training

    _run = ScriptRun(command, transport, traffic, lambda: {**_facts(), "reproducible": fixed}, joins)
    if command.profile:
        from ringtrain.torch.step_profile import StepProfile

        _profile = StepProfile(transport.size)
        register_optimizer_step_pre_hook(lambda *arguments: _profile.times.update())
    register_optimizer_step_post_hook(_after_step)
    _watch_modules(_run)
    for name in ("stdout", "stderr") if command.metrics and transport.rank == 0 else ():
        setattr(sys, name, MetricLines(getattr(sys, name), command.metrics, _run.scores))


def log_step(step: int | None = None, *, loss=None, accuracy=None, test_loss=None, test_accuracy=None) -> None:
    """Record the scores of a step in the run folder of ``python -m ringtrain.torch --out``; without one do nothing.

    step:                     its number, as the script counts
    loss, accuracy:           of training; accuracies are fractions
    test_loss, test_accuracy: of an evaluation

    Rank 0's are recorded, and no rank waits for another: call it on all ranks, or on rank 0. Raises UsageError.
    """
    scores = zip(SCORES, (loss, accuracy, test_loss, test_accuracy), strict=True)
    values = {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in scores}
    values = {name: value for name, value in values.items() if value is not None}
    for name, value in values.items():
        if name.endswith("accuracy") and not 0 <= value <= 1:
            raise UsageError(f"log_step({name}={value:g}): an accuracy is a fraction, from 0 to 1")
    if _run is not None:
        _run.scores(values if step is None else {STEP: int(step), **values})


def traffic() -> tuple[int | None, float | None]:
    """Return the bytes that this rank has sent so far, and the seconds for which it waited: of engines, or else of
    DDP's own reducer. None for what is not counted."""
    if not ENGINES:
        return sum(each.bytes_sent for each in LEAVING) or None, _reducer_s
    sent, exposed_s = zip(*(engine.traffic() for engine in ENGINES), strict=True)
    return sum(sent), sum(exposed_s)


def folder_and_step() -> tuple[str, int] | None:
    """Return the folder of the run and the number of the last step; None without a record."""
    return None if _run is None else _run.folder_and_step


def lost(transport: Transport, event: RanksLost, ranks: tuple[int, ...]) -> None:
    """Record that ranks have died, and go on among the others. ranks: all that have died so far"""
    if _run is not None:
        _run.lost(transport, event, ranks)


def failed(error: BaseException | str, code: int, where: str) -> None:
    """Record that this rank's script has failed."""
    if _run is not None:
        kind = "SystemExit" if isinstance(error, str) else type(error).__name__
        _run.failed(kind, f"{where}: {error if isinstance(error, str) else f'{kind}: {error}'}", code)


def measure() -> None:
    """Measure the exchange up to the end of the script, while there are engines."""
    if _run is None:
        return
    exchanges, exchanged, lag = [arena.exchange for engine in ENGINES for arena in engine.arenas], None, None
    if exchanges:
        each_traffic, lags = [exchange.reducers.traffic() for exchange in exchanges], exchanges[0].serving.lag()
        buckets = tuple(BucketExchanged(**asdict(bucket)) for one in each_traffic for bucket in one.buckets)
        bytes_sent, exposed_s = traffic()
        overlap = ENGINES[0].config.overlap
        exchanged = {"overlap": overlap, "bytes_sent": bytes_sent, "exposed_s": exposed_s, "buckets": buckets}
        lag = {"clock": lags.clocks, "version": lags.versions} if lags else None
    _run.measure(_memory, exchanged, lag)


def ended(code: int, sha256: str) -> None:
    """Record that the script has come to its end, with the hash of its weights. Collective."""
    if _run is not None and _profile is not None:
        medians = _profile.times.medians()
        _run.keep_profile(medians, _profile.described(_memory["state_bytes"]) if medians else {})
    if _run is not None:
        _run.ended(code, sha256)


def weights_sha256() -> str:
    """Return the hash of the parameters and buffers of all modules that have engines; empty without one."""
    digest = hashlib.sha256()
    for engine in ENGINES:
        if not engine.differs:
            engine.wait_for_weights()
        for name, tensor in (*engine.module.named_parameters(), *engine.module.named_buffers()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest() if ENGINES else ""


def _facts() -> Mapping[str, Any]:
    """Return the fields of the record of the start that are known when the first step is done."""
    from ringtrain.train.start.header import strategy_words

    facts: dict[str, Any] = {"strategy": "allreduce (DDP's reducer)", "exact": True}
    for engine in ENGINES[:1]:
        exchange, is_sharded = engine.arenas[0].exchange, engine.parts.in_halves
        words = "sharded, parameters whole" if is_sharded else strategy_words(engine.config, exchange)
        facts = {"strategy": words, "exact": exchange.facts.exact}
    for optimizer in list(_optimizers)[:1]:
        settings = [f"{name} {value}" for name, value in optimizer.defaults.items() if name != "lr" and value]
        facts["optimizer"] = ", ".join([type(optimizer).__name__, *settings])
    for module in list(_modules)[:1]:
        parameter, *rest = module.parameters()
        dtype, threads = str(parameter.dtype).removeprefix("torch."), f"{torch.get_num_threads()} threads"
        facts |= {"model": type(module).__name__, "parameters": sum(each.numel() for each in (parameter, *rest))}
        facts |= {"dtype": dtype, "precision": dtype, "device": f"{parameter.device.type} of PyTorch, {threads}"}
    return facts


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _after_step(optimizer: torch.optim.Optimizer, arguments: tuple, named: dict) -> None:
    """Count the steps of the first optimizer: of several, all step in an iteration."""
    _optimizers.setdefault(optimizer)
    if _profile is not None:
        _profile.times.updated()
        if next(iter(_optimizers)) is optimizer:
            _profile.step(_reducer_s or 0.0)
    if _run is not None and next(iter(_optimizers)) is optimizer:
        _run.step(float(optimizer.param_groups[0].get("lr", float("nan"))))
        if _run.steps & (_run.steps - 1) == 0:  # now and then: at the script's end its modules are gone
            _weigh()


def _weigh() -> None:
    """Count the bytes of weights, of gradients, and of the state of optimizers and exchanges."""
    nbytes = sum(each.nbytes for module in _modules for each in module.parameters())
    states = [state.values() for optimizer in _optimizers for state in optimizer.state.values()]
    of_state = sum(each.nbytes for values in states for each in values if isinstance(each, torch.Tensor))
    beside = sum(arena.exchange.facts.state_bytes or 0 for engine in ENGINES for arena in engine.arenas)
    _memory.update(weights_bytes=nbytes, gradient_bytes=nbytes, state_bytes=of_state + beside)


def _watch_modules(run: "ScriptRun") -> None:
    torchs_own = DistributedDataParallel.__init__

    def begin_forward(ddp, arguments: tuple, named: dict) -> None:
        if torch.is_grad_enabled() and next(iter(_modules)) is ddp.module:
            tensors = (each for each in tree_leaves((arguments, named)) if isinstance(each, torch.Tensor))
            run.forward(next((len(each) for each in tensors if each.ndim), 1))
            if _profile is not None:
                _profile.times.forward()

    def end_forward(ddp, arguments: tuple, outputs) -> None:
        leaves = tree_leaves(outputs) if torch.is_grad_enabled() and not ENGINES else []
        for tensor in [each for each in leaves if isinstance(each, torch.Tensor) and each.grad_fn is not None][:1]:
            tensor.register_hook(begin_backward)

    def begin_backward(gradient: torch.Tensor) -> None:
        queue_callback(_time_reducer)
        if _profile is not None:
            _profile.times.backward()

    def make(ddp, module, *arguments, **named) -> None:
        torchs_own(ddp, module, *arguments, **named)
        _modules.setdefault(module)
        if _profile is not None:
            _profile.watch(ddp)
        ddp.register_forward_pre_hook(torch._dynamo.disable(begin_forward), with_kwargs=True)
        ddp.register_forward_hook(torch._dynamo.disable(end_forward))

    DistributedDataParallel.__init__ = make


def _time_reducer() -> None:
    """At the end of backward, time what comes before the next call: DDP's reducer waits for its buckets."""
    began = time.perf_counter()

    def stop() -> None:
        global _reducer_s
        _reducer_s = (_reducer_s or 0.0) + time.perf_counter() - began

    queue_callback(stop)
