"""The parameters of one type of a module of PyTorch: their arena, and the strategy that exchanges it."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.parts import parts_of
from ringtrain.exchange.replica_check import ReplicaCheck
from ringtrain.exchange.servers.shards import in_even_order
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.memory.arena import Arena, lay_out
from ringtrain.memory.spans import Fill, Parameter, Span
from ringtrain.monitor.guard import Guard
from ringtrain.monitor.guarded_transport import GuardedTransport
from ringtrain.ops.catalogue import make_ops
from ringtrain.torch.torch_optimizer import TorchOptimizer, view_of
from ringtrain.transport.base import Transport

TYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "float32"}  # of a tensor → of its arena
UNKEPT = 3  # references to a tensor that is in a list, in a variable and an argument
AS_THEY_ARE = Fill("constant")  # values are the module's
Named = Sequence[tuple[str, torch.Tensor]]


class ModuleArena:
    """Parameters of one type, moved into an arena, and their exchange. NumPy has no bfloat16: such parameters stay in
    their place, and the arena has copies in float32.

    parameters: with their names, as many as are trained
    buffers:    with their names, which an average of weights takes too
    transport:  of the ranks of the module; this arena has messages of its own
    parts:      of the batch: of this rank, and of all

    ``gradients``: the tensor over the memory of each parameter's gradient. ``copies``: whether the arena has copies of
    the parameters.
    """

    def __init__(
        self, parameters: Named, buffers: Named, config: ExchangeConfig, transport: Transport, parts: tuple[int, int]
    ):
        size, dtype = transport.size, TYPES[parameters[0][1].dtype]
        self._rank_parts, self._all_parts = parts
        group = transport.lasting_group(range(size))
        assert group is not None, "this rank is among all"
        group.activity = transport.activity
        config = _whole_parameters(config, size, len(parameters))
        strategy = parts_of(config)
        if strategy.has_servers and not strategy.averages:
            order = in_even_order(lay_out(_table(parameters)), config.servers)
            parameters = [parameters[index] for index in order]
        ops = make_ops("cpu", dtype)
        self._guard = Guard(group, config.deadline_s) if config.check_collectives and size > 1 else None
        self.transport = group if self._guard is None else GuardedTransport(group, self._guard)
        tuning = find_tuning(group, config.tuning).table if config.algorithm == AUTO and size > 1 else None
        settings = ExchangeSettings(config, group, ops, tuning, self._guard, batch=self._all_parts)
        self.exchange = make_exchange(settings)
        table = _table(parameters) + _table(buffers, "statistic")
        self.arena = Arena(group.scratch, table, dtype, group.allocate)
        self.parameters = [p for _, p in parameters]
        self.spans = self.arena.spans[: len(self.parameters)]
        _check_apart([*parameters, *buffers])
        self.copies = parameters[0][1].dtype is torch.bfloat16
        self._keeps = config.elastic is not None
        self._due: set[str] = set()  # names of copies that an exchange may have changed since they were given back
        self._places = {
            span.name: (tensor, view_of(self.arena.weights, span.start, tensor))
            for span, (_, tensor) in zip(self.arena.spans, [*parameters, *buffers], strict=True)
        }
        self.take_back()
        self.rule = TorchOptimizer(self.arena.spans, self.parameters, self.take_back)
        self.exchange.bind(self.arena, self.rule)
        self._replicas = ReplicaCheck(ops, self.arena, self.exchange, self.transport)
        self._check_every = config.check_replicas
        self.gradients = self.rule.views(self.arena.grads)

    def take_back(self, spans: Sequence[Span] | None = None) -> None:
        """Let weights, of these spans or of all, lie in the arena that do not: at first, and where the script has set
        ``data``. Copies are made again."""
        with torch.no_grad():
            for tensor, view in self._places.values() if spans is None else [self._places[s.name] for s in spans]:
                if tensor.data_ptr() != view.data_ptr() and tensor.numel():
                    view.copy_(tensor)
                    if not self.copies:
                        tensor.data = view

    def _give_back(self, span: Span | None = None) -> None:
        """Bring what an exchange has changed to tensors of which the arena has copies: of one span, or of all."""
        with torch.no_grad():
            for tensor, view in self._places.values() if span is None else [self._places[span.name]]:
                tensor.copy_(view)

    # ── the calls of an iteration ─────────────────────────────────────────────────────────────────────────────
    def before_read(self, span: Span) -> None:
        """Wait until the weights of a span are current."""
        self.exchange.before_read(span)
        if span.name in self._due:  # once: autograd takes a weight that is written for another one
            self._due.remove(span.name)
            self._give_back(span)

    def finish(self, iteration: int) -> None:
        """Complete the exchange of an iteration, and update."""
        self.exchange.finish(iteration, 1.0)  # of the script's own learning rates
        if self.copies:
            self._give_back()
            self._due = {span.name for span in self.arena.spans}

    def synchronize(self) -> None:
        """Make the weights current on every rank."""
        self.exchange.synchronize()
        if self.copies:
            self._give_back()

    def before(self, iteration: int) -> None:
        """Begin an iteration, of which each rank has an equal part."""
        self.take_back()
        if self._guard is not None:
            self._guard.iterate(iteration + 1)
        if self._check_every and iteration and iteration % self._check_every == 0:
            self.exchange.synchronize()
            self._replicas.check(f"after step {iteration}")
        self.exchange.before(iteration, self._rank_parts, self._all_parts)
        if self.copies:
            self._give_back()
        denominator = round(self.exchange.denominator(self._rank_parts, self._all_parts))
        self.rule.divisor = 1 if self.exchange.facts.shards else denominator  # shards are divided before they are added
        for span in reversed(self.arena.spans[len(self.parameters) :]):  # a buffer has no gradient to wait for
            self.exchange.grad_ready(span)

    def owned(self) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Return the parameters that this rank updates, with their gradients in the arena; none that no backward has
        reached."""
        names = {span.name for span, _ in self.rule.state.owned()} - self.rule.untouched
        each = zip(self.spans, self.parameters, self.gradients, strict=True)
        return [(parameter, gradient) for span, parameter, gradient in each if span.name in names]

    def announce(self, index: int, is_summed: bool, factor: float = 1.0, checked: bool = False) -> bool:
        """Bring a parameter's gradient, times the factor, into the arena, and start its exchange; zeros where there is
        none. One that is not summed is used where it lies, if it can be. ``checked``: zeros in place of a gradient that
        is not finite, too. Returns whether it was finite, if it is checked."""
        parameter, span = self.parameters[index], self.spans[index]
        self.rule.apart.pop(span.name, None)
        is_changed = is_summed or checked or factor != 1 or self.copies
        if not is_changed and parameter.grad is not None and not parameter.grad.is_sparse:
            self.rule.apart[span.name] = parameter.grad
            self.exchange.grad_ready(span)
            return True
        finite = self._bring(index, factor, checked)
        if self.exchange.facts.shards is not None:
            self.exchange.shard_grad_ready(span)
        self.exchange.grad_ready(span)
        return finite

    def keep_part(self, index: int, factor: float, checked: bool) -> bool:
        """Add a parameter's gradient, times the factor, of a part of the batch that is not this rank's last. The next
        part's comes in its place. Returns as :meth:`announce`."""
        finite = self._bring(index, factor, checked)
        self.exchange.shard_grad_ready(self.spans[index])
        self.parameters[index].grad = None
        return finite

    def _bring(self, index: int, factor: float, checked: bool) -> bool:
        parameter, span = self.parameters[index], self.spans[index]
        self._let_keep(index)
        gradient = self.gradients[index]
        if self._keeps and parameter.grad is not None and parameter.grad.data_ptr() == gradient.data_ptr():
            parameter.grad = gradient.clone()  # the survivors of a death add it again
        if parameter.grad is None:
            gradient.zero_()
        elif parameter.grad.is_sparse:
            raise UsageError(
                f"the gradient of {span.name} is sparse, and an exchange takes dense ones: make the layer "
                "with sparse=False, or leave --sync and the others out: DDP's own reducer takes it"
            )
        elif factor != 1 and not self.copies:
            torch.mul(parameter.grad, factor, out=gradient)
        elif parameter.grad.data_ptr() != gradient.data_ptr():
            gradient.copy_(parameter.grad)
            if factor != 1:
                gradient.mul_(factor)
        finite = not checked or bool(torch.isfinite(gradient).all())
        if not finite:
            gradient.zero_()
        if parameter.grad is not None and not (self.rule.script_steps or self.copies):
            parameter.grad = gradient
        return finite

    def give(self, index: int) -> None:
        """Give a parameter its gradient in the arena."""
        parameter, gradient = self.parameters[index], self.gradients[index]
        parameter.grad = gradient.to(parameter.dtype)

    def _let_keep(self, index: int) -> None:
        """Move a gradient of the pass before to memory of its own, if the script keeps it."""
        gradient = self.gradients[index]
        if sys.getrefcount(gradient) > UNKEPT and self.parameters[index].grad is not gradient:
            gradient.set_(gradient.clone())
            self.gradients[index] = view_of(self.arena.grads, self.spans[index].start, self.parameters[index])

    def close(self) -> None:
        """Free the messages. Collective."""
        self.exchange.reducers.close()
        if self._guard is not None:
            self._guard.close()


def _whole_parameters(config: ExchangeConfig, size: int, parameters: int) -> ExchangeConfig:
    """Owners of whole parameters, whose optimizer is torch's: as many servers as ranks."""
    if parts_of(config).in_halves:
        return replace(config, sync="server", servers=min(size, parameters), algorithm=AUTO)
    return config


def _table(named: Named, role: str = "") -> tuple[tuple[str, Parameter], ...]:
    roles = [role or ("weight" if t.dim() > 1 else "bias") for _, t in named]  # no method compresses scales and shifts
    return tuple(
        (n, Parameter(n, tuple(t.shape) or (1,), AS_THEY_ARE, role)) for (n, t), role in zip(named, roles, strict=True)
    )


def _check_apart(named: Named) -> None:
    """Raise UsageError for two tensors that share memory."""
    places = sorted((t.untyped_storage().data_ptr(), t.data_ptr(), name, t) for name, t in named if t.numel())
    for (storage, first, name, tensor), (next_storage, second, other, _) in pairwise(places):
        if storage == next_storage and second < first + tensor.nbytes and tensor.is_contiguous():
            raise UsageError(
                f"{name} and {other} share memory, and a strategy moves each to a place of its own: tie them by "
                "assigning the Parameter itself, or leave --sync and the others out"
            )
