"""Keeps the ranks of a module of PyTorch in step by a strategy of ringtrain: autograd makes the gradients, the script's
optimizer is the update rule, and the exchange is the same as that of ringtrain's own layers.

With an all-reduce whose updates are not late, gradients are exchanged while backward runs, and at its end each ``grad``
is the mean over the ranks, as after DDP's own reducer; the step is the script's alone. With any other strategy the step
belongs to the exchange: the call of ``optimizer.step()`` exchanges, and calls the optimizer for what this rank updates.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from ringtrain.allreduce.wire_formats import NONE as UNCOMPRESSED
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.exchange.buckets.deferred_update import FORWARD, NONE
from ringtrain.exchange.parts import parts_of
from ringtrain.exchange.strategies.rank_averages import OF_TRAINING
from ringtrain.memory.spans import Span
from ringtrain.torch import stopping
from ringtrain.torch.batch_parts import BatchParts
from ringtrain.torch.kept_sums import KeptSums, Survival
from ringtrain.torch.module_arena import TYPES, ModuleArena
from ringtrain.transport.activity import EXCHANGE
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import SERVICES

queue_callback = Variable._execution_engine.queue_callback
Gradients = list[tuple[torch.nn.Parameter, torch.Tensor]]
Spans = list[tuple[ModuleArena, Span]]


class Engine:
    """The exchange of one module.

    module:     of the script, without DDP's wrapper
    parameters: (name, parameter) that DDP would reduce
    transport:  of the module's ranks
    group:      PyTorch's group of these ranks
    buffers:    whether an average of weights takes the buffers too
    survival:   with ``--elastic``; then the engine sends rank 0's buffers to the others, in place of DDP

    ``differs``: whether ranks have weights of their own. ``in_backward``: whether the sums have arrived at the end of
    backward, and the step is the script's. ``begun``: whether an iteration is under way. ``scale``: the factor of the
    loss in the gradients that leave; they travel without it. ``overflow``: whether a gradient of this iteration was not
    finite, and left as zeros. ``steps_by_scaler``: whether the scaler makes this step, so that its scale is the loss's.
    ``saved``: whether the script has asked for the strategy's state. ``passed_over``: whether another module's step has
    come since the last backward. ``batch``: its parts. ``wrapper()``: DDP's; None if the script has dropped it.
    ``ids``: of the parameters.
    """

    _noted: ClassVar[set[str]] = set()  # of all modules

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        config: ExchangeConfig,
        transport: Transport,
        group: dist.ProcessGroup,
        buffers: bool = True,
        survival: Survival | None = None,
    ):
        for name, parameter in parameters:
            _check(name, parameter)
        self.module, self.group, self.parts, self._parameters = module, group, parts_of(config), parameters
        self._updates_alone = not self.parts.equal_weights
        self.differs = self._updates_alone and transport.size > 1
        averaged = [(n, b) for n, b in module.named_buffers() if b.dtype in TYPES and torch.isfinite(b).all()]
        self._averaged = averaged if buffers and self.differs else []
        self.batch = BatchParts(config, transport.size, module)
        self.config = config = replace(config, shards=self.batch.count) if config.reproducible else config
        self._make_arenas(transport)
        if (config.quorum or 1) > 1 and (SERVICES or len(self.arenas) > 1):
            raise UsageError(
                f"--quorum {config.quorum} is of one module with parameters of one type, and this script has more: one "
                "rank could wait in one, another in another one. Give --quorum 1, with which none waits"
            )
        self.iteration, self.begun, self.scale, self.overflow = 0, False, 1.0, False
        self.steps_by_scaler = self.saved = self.passed_over = False
        self.wrapper: Callable[[], object] = lambda: module
        self.ids = {id(parameter) for _, parameter in parameters}
        self._trained = {id(each) for each in module.parameters() if each.requires_grad}
        self._synced = False  # whether the next backward is exchanged: not within no_sync()
        self._in_pass = self._reached = False  # whether a backward is under way, and has reached a parameter
        # Whether gradients leave when they are final. The first iteration tells how many passes one has.
        self.early, self._learned = self.in_backward and config.overlap != NONE, False
        self._passes = [0] * len(self._slots)  # exchanged backward passes since the last step, by parameter
        self._announced: dict[int, int] = {}  # number of the parameter → version of its gradient
        self._left = False  # whether all gradients of this iteration have left
        self._complete = False  # whether their sums have arrived, before the step
        self._optimizer: torch.optim.Optimizer | None = None
        self._groups = 0
        self._called: set[str] = set()  # names of the spans of layers that forward has called
        self._survival, self._stops = survival, False
        self.traffic_before = 0, 0.0  # of arenas before a death
        self._lost: RingtrainError | None = None
        self.kept = None if survival is None else KeptSums(self.arenas, module if buffers else None)
        if self.differs:
            SERVICES.extend(arena.exchange.serving.poll for arena in self.arenas)
        self._hook()
        for text in [note for arena in self.arenas for note in arena.exchange.facts.notes if note not in OF_TRAINING]:
            self.note(text)

    def _make_arenas(self, transport: Transport) -> None:
        """Let parameters lie in memory that these ranks exchange. Collective."""
        self.arenas = [
            ModuleArena(
                [each for each in self._parameters if each[1].dtype is dtype],
                [each for each in self._averaged if each[1].dtype is dtype],
                self.config,
                transport,
                (self.batch.of_rank, self.batch.count),
            )
            for dtype in dict.fromkeys(parameter.dtype for _, parameter in self._parameters)
        ]
        self.transport = self.arenas[0].transport
        self.in_backward = self.arenas[0].exchange.facts.script_steps and self.config.overlap != FORWARD
        for arena in self.arenas:
            arena.rule.script_steps = self.in_backward
        self._slots = [(arena, index) for arena in self.arenas for index in range(len(arena.parameters))]
        self._next_untouched = [frozenset[str]() for _ in self.arenas]
        self._uncalled: Spans = [(arena, span) for arena in self.arenas for span in arena.arena.spans]

    # ── forward ───────────────────────────────────────────────────────────────────────────────────────────────
    def _hook(self) -> None:
        module, on = self.module, partial(Hook, self)
        self._handles = [
            arena.parameters[index].register_post_accumulate_grad_hook(on("_on_gradient", number))
            for number, (arena, index) in enumerate(self._slots)
        ]
        for layer in module.modules() if self.config.overlap == FORWARD else ():
            hook = on("_before_layer", self._spans_of(layer))
            self._handles.append(layer.register_forward_pre_hook(hook, prepend=True))
        self._handles += [
            module.register_forward_pre_hook(on("_before_forward"), prepend=True),
            module.register_forward_hook(on("_after_forward")),
            module.register_state_dict_pre_hook(on("_before_saving")),
            module.register_load_state_dict_pre_hook(on("wait_for_weights")),
        ]

    def _before_forward(self, module: torch.nn.Module, inputs: tuple) -> None:
        if torch.is_grad_enabled():
            self.transport.activity.at("forward")
            self._begin(in_forward=True)
        else:
            self._note_own_weights()
        for arena, span in self._uncalled:
            arena.before_read(span)

    def _before_layer(self, spans: Spans, layer: torch.nn.Module, inputs: tuple) -> None:
        """Wait for the weights of a layer. Those of a layer that is not called itself, as within
        nn.MultiheadAttention, are waited for before forward."""
        for arena, span in spans:
            self._called.add(span.name)
            arena.before_read(span)

    def _spans_of(self, layer: torch.nn.Module) -> Spans:
        ids = {id(parameter) for parameter in layer.parameters(recurse=False)}
        return [(a, a.spans[i]) for a, i in self._slots if id(a.parameters[i]) in ids]

    def _after_forward(self, module: torch.nn.Module, inputs: tuple, outputs) -> None:
        """Learn where backward begins."""
        if self._called:
            self.wait_for_weights()
            self._uncalled = [each for each in self._uncalled if each[1].name not in self._called]
        for tensor in tree_leaves(outputs) if torch.is_grad_enabled() else ():
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                tensor.register_hook(self._begin_pass)

    def wait_for_weights(self, *arguments) -> None:
        for arena in self.arenas:
            for span in arena.arena.spans:
                arena.before_read(span)

    def _before_saving(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        self._note_own_weights()
        self.wait_for_weights()

    def _note_own_weights(self) -> None:
        if self.differs:
            self.note(
                "weights differ between ranks, and each evaluates and saves its own; ringtrain.torch.synchronize(), "
                "which all ranks call, puts their mean in the place of them"
            )

    def expect_backward(self) -> None:
        """Exchange the gradients of the next backward."""
        if self._in_pass and torch._C._current_graph_task_id() == -1:  # the last backward has raised an exception
            if self._announced:
                raise UsageError(
                    "a backward pass raised an exception when gradients had left, and the script goes on: the other "
                    "ranks wait for the rest of them. End the script, or give --overlap none"
                )
            self._in_pass = False
        self._synced = True

    def _begin(self, in_forward: bool = False) -> None:
        """Begin an iteration, unless one is under way. ``in_forward``: its layers wait for late updates, each for its
        own; where no forward pass has come since, and before copies are made again, all are complete first."""
        if self.begun:
            return
        trained = {id(each): name for name, each in self.module.named_parameters() if each.requires_grad}
        for name in [name for key, name in trained.items() if key not in self._trained]:
            raise UsageError(
                f"{name} was frozen, or was not there, when DistributedDataParallel wrapped the module, and all ranks "
                "exchange what it had then: freeze it later, or wrap the module again"
            )
        if in_forward and not trained:  # the discriminator of a GAN in the step of the generator
            return
        self.batch.check_statistics()
        self.begun = True
        if not in_forward or any(arena.copies for arena in self.arenas):
            self.wait_for_weights()
        for arena in self.arenas:
            self._unless_lost(partial(arena.before, self.iteration))

    def _unless_lost(self, action: Callable[[], None]) -> None:
        """Run a part of the exchange, and keep the error of a death until the end of backward, which it would cut."""
        try:
            if self._lost is None:
                action()
        except RingtrainError as error:
            if self._survival is None or not self._survival.survives(error):
                raise
            self._lost = error

    # ── backward ──────────────────────────────────────────────────────────────────────────────────────────────
    def _begin_pass(self, gradient: torch.Tensor | None = None) -> None:
        if self._synced and not self._in_pass:
            self._in_pass, self._reached, self.passed_over = True, False, False
            self.transport.activity.at("backward")
            queue_callback(self._end_pass)
            if self._announced and self.sums_for_step and not self._has_left_gradients():
                self._leave_step_out()

    def _has_left_gradients(self) -> bool:
        """Whether parameters may have gradients that have left; not if the script has taken all of them away."""
        places = {gradient.data_ptr() for arena in self.arenas for gradient in arena.gradients}
        is_copied = any(arena.copies for arena in self.arenas)
        return is_copied or any(gradient.data_ptr() in places for _, gradient in self.gradients())

    @torch.no_grad()
    def _leave_step_out(self) -> None:
        """End an iteration without a step. Collective."""
        hidden = self.hide()  # of a pass within no_sync()
        self.drop()
        self.finish()
        for parameter, gradient in hidden:
            parameter.grad = gradient

    def _end_pass(self) -> None:
        self._in_pass = False
        self.transport.activity.at("between backward and step")
        if not self._reached:  # torch.autograd.grad, of an input
            return
        self._synced = False
        self.batch.passed()
        if not self.batch.is_last:
            self._keep_part()
            return
        if not self.in_backward:
            return
        touched = self._sum() if self._survival is None else self._sum_among_survivors(self._survival)
        if self._travel_scale != 1:
            for arena, index in self._slots:
                arena.gradients[index].mul_(self.scale)
        if self.overflow:
            self._slots[0][0].gradients[self._slots[0][1]].fill_(torch.inf)  # the scaler leaves the step out
        for number in np.flatnonzero(touched).tolist():
            self._slots[number][0].give(self._slots[number][1])
        self._end_iteration()

    def _sum(self) -> np.ndarray:
        """Complete the sums of an iteration. Returns whether a backward of any rank has reached each parameter."""
        self._begin()
        touched = self._announce_rest()
        for arena in self.arenas:
            arena.finish(self.iteration)
        return touched

    def _sum_among_survivors(self, survival: Survival) -> np.ndarray:
        """As :meth:`_sum`; where ranks die, again among those that are left, until one of these has all sums."""
        assert self.kept is not None, "it comes with survival"
        wanted = self.kept.count + 1
        while self.kept.count < wanted:
            try:
                if self._lost is not None:
                    raise self._lost
                survival.begin(self, self.kept)
                touched = self._sum()
                self.kept.send_buffers(self.transport)
                self.kept.keep(self.arenas, touched, self._stops)
            except RingtrainError as error:
                survival.recover(error)
        stopping.take_answer(self.kept.stops)
        return self.kept.give(self.arenas)

    def traffic(self) -> tuple[int, float]:
        """Return the bytes that this rank has sent, and the seconds for which it waited."""
        reducers = [arena.exchange.reducers for arena in self.arenas]
        sent, exposed_s = self.traffic_before
        return sent + sum(each.bytes_sent for each in reducers), exposed_s + sum(each.exposed_s for each in reducers)

    def move(self, transport: Transport) -> None:
        """Exchange among these ranks from now on, the survivors of a death: what was under way begins anew, by the
        gradients of the script. Collective."""
        self.traffic_before = self.traffic()
        self.batch = BatchParts(self.config, transport.size, self.module)
        self._make_arenas(transport)
        self._lost, self.begun = None, False
        self._announced.clear()

    def _on_gradient(self, number: int, parameter: torch.Tensor) -> None:
        if not self._synced:
            return
        self._begin_pass()
        self._reached = True
        if not self.batch.is_last:
            return
        arena, index = self._slots[number]
        self._passes[number] += 1
        if number in self._announced:
            raise self._second_pass(arena.spans[index].name)
        if self.early and self._sums:
            self._begin()
            self._unless_lost(partial(self._announce, number))
        elif self.differs and not self._sums:  # a sum would count a gradient that has not left
            arena.exchange.grad_ready(arena.spans[index])  # serves others, and what is under way, meanwhile

    @property
    def _travel_scale(self) -> float:
        """The loss's factor that gradients travel without. A sum that is the script's own keeps it, but for what is
        kept from one iteration to another."""
        return self.scale if not self.in_backward or self.config.compress != UNCOMPRESSED else 1.0

    @property
    def _factor(self) -> float:
        """What a gradient is multiplied by before it leaves."""
        is_divided = self.in_backward or self.config.reproducible
        weight = 1.0 if self._survival is None else self._survival.weight()
        return weight / (self.batch.count if is_divided else 1) / self._travel_scale

    def _keep_part(self) -> None:
        """Add the gradients of a part that is not this rank's last."""
        self._begin()
        for number, (arena, index) in enumerate(self._slots):
            if arena.parameters[index].grad is not None:
                self.batch.touched.add(number)
            self.overflow |= not arena.keep_part(index, self._factor, self._travel_scale != 1)

    def _announce(self, number: int) -> None:
        arena, index = self._slots[number]
        self.overflow |= not arena.announce(index, self._sums, self._factor, self._travel_scale != 1)
        self._announced[number] = arena.gradients[index]._version

    def _announce_rest(self) -> np.ndarray:
        """Announce the gradients that have not left. Returns whether a backward has reached each parameter: on any rank
        where ranks are together, else on this one."""
        self.transport.activity.at(EXCHANGE)
        touched = np.zeros(len(self._slots) + 2)
        for number in reversed(range(len(self._slots))):
            arena, index = self._slots[number]
            touched[number] = number in self.batch.touched or arena.parameters[index].grad is not None
            if number not in self._announced:
                self._announce(number)
        self._check_unchanged()
        touched[-2:] = stopping.is_asked(), self.overflow
        if not self.differs and self.transport.size > 1:
            self.transport.native_allreduce_start(touched).wait(self.config.deadline_s)
        self.overflow = bool(touched[-1])
        self._stops = bool(touched[-2])
        return touched[:-2] > 0

    def _check_unchanged(self) -> None:
        """Raise UsageError if the script has changed a gradient that had left."""
        for number, version in self._announced.items() if self.sums_for_step and not self._complete else ():
            arena, index = self._slots[number]
            gradient, now = arena.gradients[index], arena.parameters[index].grad
            is_other = now is not None and now.dtype is gradient.dtype and now.data_ptr() != gradient.data_ptr()
            if gradient._version != version or is_other:
                raise UsageError(
                    f"the gradient of {arena.spans[index].name} was changed between backward and step, when it had "
                    "left: give --overlap none, with which gradients leave in step"
                )

    def _end_iteration(self) -> None:
        self.iteration += 1
        self.begun = self.overflow = self.steps_by_scaler = self.passed_over = self._left = self._complete = False
        self._announced.clear()
        self.batch.touched.clear()
        self.transport.activity.at("between two steps")

    # ── the step ──────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def in_step(self) -> bool:
        """Whether a step has to end the iteration that is under way. The step of another module ends that of this one
        if its loss has gone through this one, as through the discriminator of a GAN."""
        return self.begun and not self.passed_over

    @property
    def _sums(self) -> bool:
        """Whether gradients of this iteration are summed over the ranks."""
        return self.iteration < self.parts.begins or not self._updates_alone

    @property
    def sums_for_step(self) -> bool:
        """Whether sums have to arrive on their owners before they can be clipped."""
        return self._sums and not self.in_backward and not self.parts.late_gradients

    def complete(self) -> Gradients:
        """Wait for the sums of this iteration. Returns the parameters that this rank updates, each with the mean of its
        gradients; what is changed there before the step, counts. Collective."""
        self.leave()
        for arena in () if self._complete else self.arenas:
            arena.exchange.complete()
            for _, gradient in arena.owned():
                gradient.div_(arena.rule.divisor)
            arena.rule.divisor = 1
        self._complete = True
        return [each for arena in self.arenas for each in arena.owned()]

    def leave(self) -> None:
        """Let all gradients leave that have not. Collective where ranks are together."""
        if self._left:
            self._check_unchanged()
            return
        self._left = True
        self._begin()
        for arena in self.arenas:
            arena.take_back()
        touched = iter(self._announce_rest())
        for number, arena in enumerate(self.arenas):
            if self.parts.late_gradients:  # the step is by the gradients of the iteration before
                arena.rule.untouched = self._next_untouched[number]
            self._leave_out(number, [span.name for span in arena.spans if not next(touched) or self.overflow])
            if not self.steps_by_scaler:  # the loss of this module has no scale: it is of another optimizer's
                arena.rule.divisor /= self.scale

    def drop(self) -> None:
        self.leave()
        for number, arena in enumerate(self.arenas):
            self._leave_out(number, [span.name for span in arena.spans])

    def _leave_out(self, number: int, names: Sequence[str]) -> None:
        """Leave gradients of this iteration, of one arena, out of the step that is by them."""
        if self.parts.late_gradients:
            self._next_untouched[number] = frozenset(names)
        else:
            self.arenas[number].rule.untouched = frozenset(names)

    def weights(self) -> list[np.ndarray]:
        return [np.array(arena.arena.weights) for arena in self.arenas]

    def gradients(self) -> Gradients:
        """Return the parameters that have a gradient on this rank, with it."""
        parameters = (arena.parameters[index] for arena, index in self._slots)
        return [(each, each.grad) for each in parameters if each.grad is not None]

    def hide(self) -> Gradients:
        """Take the gradients away from their parameters, and return both: the optimizer leaves these alone then."""
        hidden = self.gradients()
        for parameter, _ in hidden:
            parameter.grad = None
        return hidden

    def finish(self) -> None:
        """Complete the exchange, and update what this rank updates; without this rank's gradient after an overflow."""
        for arena in self.arenas:
            if self.config.overlap == FORWARD and self._optimizer is not None:
                arena.rule.remember_settings()
            arena.finish(self.iteration)
        self._end_iteration()
        self._learn_passes()

    def _learn_passes(self) -> None:
        """Let gradients leave during backward, if an iteration has one."""
        if (
            not self._learned
            and self._sums
            and any(self._passes)
            and self.config.overlap != NONE
            and self.arenas[0].exchange.ready_points
        ):
            self.early, self._learned = max(self._passes) <= 1, True
            if not self.early:
                self.note(
                    "several backward passes come before a step: gradients leave in step, and not during backward; "
                    "with no_sync() around all but the last they leave during that one"
                )
        self._passes = [0] * len(self._slots)

    def _second_pass(self, name: str) -> UsageError:
        return UsageError(
            f"{name} got a second gradient before the step, when the first had left: put no_sync() around all backward "
            "passes but the last, or give --overlap none, with which gradients leave in step, or when clipped; "
            "to skip a step, zero_grad() sets gradients to None"
        )

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer that steps these parameters. Raises UsageError for another one than before."""
        if self._optimizer is None:
            self._optimizer, self._groups = optimizer, len(optimizer.param_groups)
            self._handles.append(optimizer.register_state_dict_pre_hook(Hook(self, "_before_saving_state")))
        for arena in self.arenas:
            arena.rule.optimizer = self._optimizer
            arena.rule.state.hand_over()
        if self._optimizer is not optimizer:
            raise UsageError(
                f"two optimizers, {type(self._optimizer).__name__} and {type(optimizer).__name__}, step the parameters "
                "of one DDP module, and a strategy makes one step: wrap their parts of it in a DistributedDataParallel "
                "each, or take one optimizer"
            )
        if self._groups != len(optimizer.param_groups):
            raise UsageError(
                f"the optimizer had {self._groups} parameter groups at its first step and has "
                f"{len(optimizer.param_groups)}: call add_param_group() before it"
            )

    def _before_saving_state(self, optimizer: torch.optim.Optimizer) -> None:
        owned = sum(1 for arena in self.arenas for _ in arena.rule.state.owned())
        if owned < len(self._slots) and not self.saved:
            self.note(
                f"optimizer.state_dict() has the state of the {owned} of {len(self._slots)} parameters that this rank "
                "updates; ringtrain.torch.state_dict(), which all ranks call, gathers the rest on rank 0"
            )

    # ── ranks that differ, and the end ────────────────────────────────────────────────────────────────────────
    def synchronize(self) -> None:
        """Make the weights current on all ranks; where ranks differ their mean is in their place until the next
        forward pass that trains. Collective, between a step and the next forward pass."""
        if self.begun and not self.in_backward:
            if self.in_step:
                raise UsageError("ringtrain.torch.synchronize() is called after a forward pass: call it after step()")
            self._leave_step_out()
        self.drain()
        for arena in self.arenas:
            arena.synchronize()

    def drain(self) -> None:
        """Serve the other ranks until all are done: a collective of the MPI that follows would not serve them."""
        for arena in self.arenas:
            arena.exchange.serving.drain_peers()

    def note(self, text: str) -> None:
        """Print a note once, on rank 0."""
        if text not in self._noted and self.transport.rank == 0:
            sys.stderr.write(f"ringtrain: note: {text}\n")
        self._noted.add(text)

    def close(self) -> None:
        """Free the messages, and leave the module alone. Collective."""
        for handle in self._handles:
            handle.remove()
        for arena in self.arenas:
            if arena.exchange.serving.poll in SERVICES:
                SERVICES.remove(arena.exchange.serving.poll)
            arena.close()


class Hook:
    """A hook of an engine. In a copy of the module, or a saved one, it does nothing."""

    def __init__(self, engine: Engine | None, name: str, *arguments):
        self._engine, self._name, self._arguments = engine, name, arguments

    @_disable_dynamo  # which is loaded when a module is wrapped, and not by each script
    def __call__(self, *arguments) -> None:
        if self._engine is not None:
            getattr(self._engine, self._name)(*self._arguments, *arguments)

    def __deepcopy__(self, memo: dict) -> "Hook":
        return Hook(None, self._name)

    def __reduce__(self):
        return Hook, (None, self._name)


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    if parameter.device.type != "cpu":
        raise UsageError(
            f"{name} is on {parameter.device}: strategies exchange modules on the CPU. Move the module there, or leave "
            "--sync and the others out: DDP's own reducer takes it"
        )
    if type(parameter.data) is not torch.Tensor:
        raise UsageError(
            f"{name} is a {type(parameter.data).__name__}, as tensor parallelism makes them, and strategies exchange "
            "whole parameters: leave tensor parallelism out, or --sync and the others"
        )
    if parameter.dtype not in TYPES:
        raise UsageError(f"{name} is of {parameter.dtype}: strategies exchange {', '.join(map(str, TYPES))}")
