"""DistributedDataParallel by a strategy of ringtrain: an engine is DDP's reducer, and makes the optimizer's step."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import CheckpointError, UsageError
from ringtrain.humanize import plural
from ringtrain.torch import exact_order, gradients, state
from ringtrain.torch.backend import RingtrainGroup
from ringtrain.torch.engine import Engine
from ringtrain.torch.world import current
from ringtrain.transport.base import Transport

ENGINES: list[Engine] = []  # of the modules that DDP has wrapped
_engine_of: dict[int, Engine] = {}  # by the id of a parameter
# Optimizers that are not PyTorch's, each with the weights before the first call of its own step.
_tried: WeakKeyDictionary[torch.optim.Optimizer, list[tuple[Engine, list[np.ndarray], list[str]]]] = WeakKeyDictionary()
_exchange: ExchangeConfig | None = None  # of modules that DDP wraps from now on; None: DDP's own reducer
_make_torchs_own = DistributedDataParallel._ddp_init_helper


class ExchangeReducer:
    """DDP's view of an engine."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def prepare_for_backward(self, outputs) -> None:
        if self.engine not in ENGINES:
            raise UsageError(
                "another DistributedDataParallel has wrapped parameters of this one, and each is exchanged by the last "
                "alone: wrap the part that modules share by itself, or one module that has all of them"
            )
        self.engine.expect_backward()

    def _rebuild_buckets(self) -> bool:
        return False

    def _nothing(self, *arguments) -> None:
        """Do nothing: it is of DDP's own buckets, graphs and figures."""

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        return SimpleNamespace(strs_map={}, ints_map={})  # Lightning asks whether a static graph would do

    prepare_for_forward = _set_static_graph = _delay_all_reduce = _check_reducer_finalized = _nothing
    set_runtime_stats_and_log = set_error_and_log = _set_ddp_runtime_logging_sample_rate = _nothing

    def _refuse(self, *arguments):
        raise UsageError(
            "DDP's join(), its own mixed precision and manual finalization belong to its reducer, and a strategy "
            "exchanges otherwise: give all ranks as many batches and use autocast, or leave --sync and the others out"
        )

    _set_forward_pass_work_handle = _get_zeros_like_grad_buckets = _set_uneven_input_join = _refuse
    _set_mixed_precision_param_dtype = _set_manual_finalization_required = _finalize_backward_manual = _refuse

    def _refuse_hook(self, *arguments):
        raise UsageError(
            "register_comm_hook: a strategy exchanges gradients itself: leave the hook out (--wire float16, --compress "
            "powersgd and --sync averaging do what PyTorch's hooks do), or leave --sync and the others out"
        )

    _set_comm_hook_name = _refuse_hook


def exchange_by(config: ExchangeConfig) -> None:
    """Exchange the modules that DDP wraps from now on by these options."""
    global _exchange
    _install()
    _exchange = config


@cache
def _install() -> None:
    DistributedDataParallel._ddp_init_helper = _make_reducer
    FullyShardedDataParallel.__init__ = fsdp.fully_shard = _refuse_fsdp
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    gradients.install(engines_of, make_step, ENGINES)


def _refuse_fsdp(*arguments, **named) -> None:
    raise UsageError(
        "FSDP divides parameters among ranks itself, and strategies exchange modules that DDP wraps: use DDP, where "
        "--sync sharded divides the optimizer's state, or leave --sync and the others out"
    )


def _make_reducer(ddp: DistributedDataParallel, parameters, expect_sparse_gradient, *more) -> None:
    if _exchange is None:
        _make_torchs_own(ddp, parameters, expect_sparse_gradient, *more)
        return
    if not isinstance(ddp.process_group, RingtrainGroup):
        raise UsageError(
            f"DDP's process group is of {dist.get_backend(ddp.process_group)}, and strategies exchange over "
            'ringtrain\'s: init_process_group("gloo") or without a name'
        )
    names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
    named = [(names[id(parameter)], parameter) for parameter in parameters]
    for (name, _), is_sparse in zip(named, expect_sparse_gradient, strict=True):
        if is_sparse:
            raise UsageError(
                f"{name} is of a layer with sparse gradients, and strategies exchange dense ones: make it with "
                "sparse=False, or leave --sync and the others out: DDP's own reducer takes it"
            )
    _retire({_engine_of[id(each)] for each in parameters if id(each) in _engine_of})
    world = current()
    transport = world.group_of(dist.get_process_group_ranks(ddp.process_group))
    named = [(name, each) for name, each in named if each.numel()]  # no strategy has something to send of the others
    if world.survival is not None and transport.size < world.transport.size:
        raise UsageError(
            "--elastic and a DistributedDataParallel over a part of the ranks: wrap the module over all, or leave "
            "--elastic out"
        )
    buffers = ddp.broadcast_buffers
    engine = Engine(ddp.module, named, _exchange, transport, ddp.process_group, buffers, world.survival)
    engine.wrapper = ref(ddp)
    if engine.differs or engine.kept is not None:
        ddp.broadcast_buffers = False  # the engine averages or sends them
    ddp.reducer = ddp.logger = ExchangeReducer(engine)
    ENGINES.append(engine)
    _engine_of.update(dict.fromkeys(map(id, parameters), engine))


def _retire(engines: set[Engine]) -> None:
    """Free the engines of modules that are wrapped again. Collective."""
    for engine in [each for each in ENGINES if each in engines]:
        ENGINES.remove(engine)
        engine.close()
    for key in [key for key, engine in _engine_of.items() if engine in engines]:
        del _engine_of[key]


# ── the script's step ─────────────────────────────────────────────────────────────────────────────────────────
def _before_step(optimizer: torch.optim.Optimizer, arguments: tuple, named: dict):
    """Make the step of the parameters that engines exchange. The optimizer's own step follows, and leaves them alone:
    they have no gradient then."""
    engines = engines_of(optimizer)
    if not engines:
        return None
    for engine in engines:
        engine.attach(optimizer)
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is not None:
        with torch.enable_grad():
            closure = _once(closure())
        named, arguments = {**named, "closure": closure}, arguments[:1]
    make_step(optimizer, engines)
    if not type(optimizer).__module__.startswith("torch.optim") and optimizer not in _tried:
        _tried[optimizer] = [(engine, engine.weights(), _settings_of(optimizer)) for engine in engines]
    return arguments, named


def _after_step(optimizer: torch.optim.Optimizer, arguments: tuple, named: dict) -> None:
    """Check that an optimizer that is not PyTorch's leaves parameters without a gradient alone, at its first step, and
    counts no steps for all of them: a strategy may make one in parts."""
    for engine, before, settings in _tried.get(optimizer, ()):
        changed = any((now != then).any() for now, then in zip(engine.weights(), before, strict=True))
        if changed or settings != _settings_of(optimizer):
            name, what = (
                type(optimizer).__name__,
                "parameters without a gradient" if changed else "its groups' settings",
            )
            raise UsageError(
                f"{name} changes {what} in a step, and the step of a strategy relies on optimizers that leave them "
                f"alone, as PyTorch's do: take another optimizer than {name}, or leave --sync and the others out"
            )
    if optimizer in _tried:
        _tried[optimizer] = []


def _settings_of(optimizer: torch.optim.Optimizer) -> list[str]:
    return [
        repr({name: value for name, value in group.items() if name != "params"}) for group in optimizer.param_groups
    ]


def engines_of(optimizer: torch.optim.Optimizer) -> list[Engine]:
    """Return the engines that make the step of parameters of an optimizer."""
    parameters = (id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    engines = dict.fromkeys(_engine_of[each] for each in parameters if each in _engine_of)
    return [engine for engine in engines if not engine.in_backward]


def make_step(optimizer: torch.optim.Optimizer, engines: Sequence[Engine]) -> None:
    """Exchange, and update what this rank updates of these engines alone."""
    for engine in engines:
        engine.leave()
        engine.hide()
    rest = [(each, each.grad) for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    for parameter, _ in rest:
        parameter.grad = None
    with torch.no_grad():
        for engine in engines:
            engine.finish()
    for parameter, gradient in rest:
        parameter.grad = gradient
    for engine in ENGINES:
        engine.passed_over = engine.begun and engine not in engines


def _once(loss) -> Callable:
    """Return a closure that has been called, and may be once more."""
    left = [loss]

    def closure():
        if not left:
            raise UsageError(
                "the optimizer calls its closure several times a step, as LBFGS does, and a strategy exchanges once a "
                "step: take another optimizer, or leave --sync and the others out"
            )
        return left.pop()

    return closure


# ── for scripts ───────────────────────────────────────────────────────────────────────────────────────────────
def state_dict() -> list[dict]:
    """Return what the strategies of all DDP modules keep from step to step, beside weights and, on ranks that update
    all, the optimizer's state, and the places in orders of ``--exact-order``: for a checkpoint of the script, which
    rank 0 saves. On other ranks strategies' parts are empty. Collective; call it between a step and the next forward
    pass."""
    return [state.state_of(engine) for engine in in_use()] + exact_order.states()


def load_state_dict(saved: Sequence[Mapping]) -> None:
    """Go on from a state that :func:`state_dict` returned on rank 0, on all ranks, before the first forward pass and
    after DDP has wrapped the modules. The number of ranks may differ.

    Raises: CheckpointError for the state of another strategy or of other modules.
    """
    orders, strategies = (
        [each for each in saved if ("examples_done" in each) is of_order] for of_order in (True, False)
    )
    engines = in_use()
    if len(strategies) != len(engines):
        raise CheckpointError(
            f"ringtrain.torch.load_state_dict() got the state of {plural(len(strategies), 'module')}, and DDP has "
            f"wrapped {len(engines)}: wrap them first, and give what state_dict() returned on rank 0"
        )
    exact_order.restore(orders)
    for engine, each in zip(engines, strategies, strict=True):
        state.restore(engine, each)


def synchronize() -> None:
    """Make the weights of all DDP modules current on all ranks: where ranks differ, as with averaging, gossip and
    staleness, their mean is in the place of the weights until the next forward pass that trains. Collective; call it
    between a step and the next forward pass, as before an evaluation or a checkpoint."""
    for engine in in_use():
        engine.synchronize()


def in_use() -> list[Engine]:
    """Return the engines of all modules but those that the script has dropped within a step."""
    return [each for each in ENGINES if each.in_backward or not each.begun or each.wrapper() is not None]


def leave(transport: Transport) -> None:
    """At the end of a script: complete what is under way, and make the weights current.
    Collective; ranks that have made other numbers of steps keep the weights that they have."""
    if _exchange is not None and not ENGINES and transport.rank == 0:
        sys.stderr.write(
            "ringtrain: note: the script made no DistributedDataParallel, so --sync and the others had no effect\n"
        )
    if exact_order.had_no_effect() and transport.rank == 0:
        sys.stderr.write("ringtrain: note: no DataLoader of the script shuffles, so --exact-order had no effect\n")
    for engine in ENGINES:
        engine.drain()
    transport.gather_json(None)  # all have come to their ends
    for engine in ENGINES:
        each = engine.transport.gather_json((engine.iteration, engine.in_step))
        alike = len({iteration for iteration, _ in each}) == 1
        if alike and not any(in_step for _, in_step in each):
            engine.synchronize()
        elif not alike:
            counts = ", ".join(f"{iteration} on rank {rank}" for rank, (iteration, _) in enumerate(each))
            engine.note(f"ranks end after different numbers of steps ({counts}): their weights are not made equal")


def close_engines(transport: Transport) -> None:
    """Free what engines hold. Collective."""
    transport.activity.limit("freeing the messages of the exchange")  # all have come
    while ENGINES:
        ENGINES.pop().close()
    _engine_of.clear()


def parallel(module: torch.nn.Module, optimizer: torch.optim.Optimizer, **options) -> DistributedDataParallel:
    """Return the module in a DistributedDataParallel whose ranks stay in step by a strategy.

    options: of the exchange, by their names in Python: sync="averaging", average_every=32

    Raises: UsageError, ConfigError for options that do not go together. Collective.
    """
    from ringtrain.cli.python_script import exchange_of

    if not dist.is_initialized():
        dist.init_process_group("ringtrain")
    global _exchange
    before, survival = _exchange, current().survival
    if "elastic" in options:
        raise UsageError("parallel(elastic=...): the launcher lets ranks survive: python -m ringtrain.torch --elastic")
    elastic = {} if survival is None else {"elastic": survival.mode}
    exchange_by(exchange_of(("parallel()", {**options, **elastic})))
    try:
        wrapped = DistributedDataParallel(module)
    finally:
        _exchange = before
    wrapped.reducer.engine.attach(optimizer)
    return wrapped
