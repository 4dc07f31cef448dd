"""The optimizer of a script of PyTorch as the update rule of an exchange."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from ringtrain.arrays import Array
from ringtrain.config.record import OptimizerConfig
from ringtrain.exchange.update.ranges import Piece
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.ops.update import RATE
from ringtrain.optim.optimizers import Optimizer

STEP = "step"  # of torch's optimizers: a count, also where a parameter has one element


def view_of(array: Array, start: int, parameter: torch.Tensor) -> torch.Tensor:
    """Return the elements of a flat array from ``start`` on, with the shape of the parameter, and its order of axes in
    memory. It is a tensor of its own, with a version counter of its own, over the same memory."""
    assert isinstance(array, np.ndarray), "the arena is in the memory of the host"
    flat = torch.from_numpy(array[start : start + parameter.numel()])
    return flat.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())  # without gaps


class TorchOptimizer(Optimizer):
    """The step of a script's optimizer, on whole parameters.

    PyTorch leaves a parameter without a gradient alone, so the parameters within the elements to update get theirs, and
    no other has one. A rank has state of the parameters that it updates alone, as ZeRO does.

    parameters: of the spans; none for a span that is no parameter, as a buffer
    stepped:    called with the spans that a step has updated

    ``optimizer``: None until the script's first step. ``divisor``: of gradients, before a step. ``script_steps``:
    whether the script's own step makes the update, by the gradients that are in the arena then. ``untouched``: names
    of the spans that no backward reached, which keep their weights and state. ``apart``: gradients of this iteration
    that are not in the arena, by the names of their spans. ``factor``: of the learning rates, in a step.
    """

    slots, linear, layerwise = (), False, True

    def __init__(
        self, spans: Sequence[Span], parameters: Sequence[torch.nn.Parameter], stepped: Callable[[Sequence[Span]], None]
    ):
        super().__init__(spans, OptimizerConfig())
        self._stepped = stepped
        self.each = list(zip(spans, parameters, strict=False))
        self.optimizer: torch.optim.Optimizer | None = None
        self.divisor, self.script_steps, self.factor = 1.0, False, 1.0
        self.untouched: frozenset[str] = frozenset()
        self.apart: dict[str, torch.Tensor] = {}
        self._settings: list[dict] | None = None
        self._agreed = False  # whether all ranks have the same arrays of state
        self._views: dict[int, list[torch.Tensor]] = {}
        self.state = StateArrays(self)

    def make_slots(self, zeros: Callable[[], Array], pieces: Sequence[Piece]) -> "StateArrays":
        self.state.bind(zeros, pieces)
        return self.state

    def agree_on_slots(self, gather: Callable[[list[str]], list[list[str]]]) -> None:
        """Have the arrays that any rank has: one whose optimizer has made no step yet has none."""
        if not self._agreed:
            every = gather(list(self.state))
            self.state.include({name for names in every for name in names})
            self._agreed = all(every)

    def views(self, grads: Array) -> list[torch.Tensor]:
        """Return the gradient of each parameter in a flat array: the same tensors in each call."""
        if id(grads) not in self._views:
            self._views[id(grads)] = [view_of(grads, span.start, parameter) for span, parameter in self.each]
        return self._views[id(grads)]

    def remember_settings(self) -> None:
        """Make later updates with the settings of the parameter groups of now: a schedule may change them first."""
        assert self.optimizer is not None, "the script makes a step"
        self._settings = [
            {name: _copy(value) for name, value in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]

    def apply(self, ops: Ops, weights, grads, slots, numbers, start, stop, first=0, squares=None, summed=False) -> None:
        if self.script_steps:
            return
        if self.divisor != 1:
            ops.scale(grads[start:stop], 1 / self.divisor)
        each = zip(self.each, self.views(grads), strict=True)
        inside = [
            (span, p, g)
            for (span, p), g in each
            if start <= span.start and span.stop <= stop and span.name not in self.untouched
        ]
        if inside:
            self.factor = float(numbers[RATE])
            self.step([(p, self.apart.pop(span.name, g)) for span, p, g in inside])
        self._stepped([span for span, *_ in inside])

    def step(self, gradients: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
        """Update these parameters by their gradients, and no other."""
        assert self.optimizer is not None, "the script makes a step"
        groups = self.optimizer.param_groups
        others = [(each, each.grad) for group in groups for each in group["params"] if each.grad is not None]
        for parameter, _ in others:  # a late update comes when others have gradients of the next iteration
            parameter.grad = None
        for parameter, gradient in gradients:
            parameter.grad = gradient.to(parameter.dtype)
        try:
            with torch.inference_mode(False), self._with_settings(groups):
                step = type(self.optimizer).step
                getattr(step, "__wrapped__", step)(self.optimizer)  # without the hooks that PyTorch wraps around it
        finally:
            for parameter, _ in gradients:
                parameter.grad = None
            for parameter, gradient in others:
                parameter.grad = gradient

    @contextmanager
    def _with_settings(self, groups: Sequence[dict]) -> Iterator[None]:
        """Make the update with the settings that are remembered, if any, and at rates times the factor."""
        every = [dict(each) for each in self._settings or [{} for _ in groups]]
        for group, settings in zip(groups, every, strict=True):
            if self.factor != 1:
                settings["lr"] = settings.get("lr", group["lr"]) * self.factor
        before = [{name: group[name] for name in each} for group, each in zip(groups, every, strict=True)]
        try:
            for group, settings in zip(groups, every, strict=True):
                group.update(settings)
            yield
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


class StateArrays(Mapping[str, Array]):
    """The state of a script's optimizer as flat arrays over the elements that this rank updates, by PyTorch's names.

    PyTorch makes a tensor of a parameter's shape at its first step. A look at the arrays moves these tensors into them:
    the optimizer then reads what an exchange writes there. Counts, and tensors of other shapes, stay with the
    optimizer (:meth:`rest`)."""

    def __init__(self, rule: TorchOptimizer):
        self._rule = rule
        self._arrays: dict[str, Array] = {}
        self._offsets: dict[str, int] = {}  # of the parameters that this rank updates
        self._rest: Mapping[str, Mapping] | None = None  # of a state that the optimizer does not have yet

    def bind(self, zeros: Callable[[], Array], pieces: Sequence[Piece]) -> None:
        """Let this rank update these pieces of the arena. ``zeros``: makes an array over them."""
        self._zeros, at = zeros, 0
        for start, stop in pieces:
            self._offsets |= {
                span.name: at + span.start - start
                for span, _ in self._rule.each
                if start <= span.start and span.stop <= stop
            }
            at += stop - start

    def owned(self) -> Iterator[tuple[Span, torch.nn.Parameter]]:
        """Yield the parameters that this rank updates."""
        return ((span, p) for span, p in self._rule.each if span.name in self._offsets)

    def _state_of(self, parameter: torch.nn.Parameter) -> dict:
        if self._rule.optimizer is None or self._rest is not None:
            return {}
        return self._rule.optimizer.state.get(parameter, {})

    def _look(self) -> dict[str, Array]:
        for span, parameter in self.owned():
            state = self._state_of(parameter)
            for name, value in state.items():
                if _is_like(value, parameter, name):
                    view = self._view(name, span, parameter)
                    if view.data_ptr() != value.data_ptr():
                        view.copy_(value)
                        state[name] = view
        return {name: self._arrays[name] for name in sorted(self._arrays)}

    def _view(self, name: str, span: Span, parameter: torch.Tensor) -> torch.Tensor:
        if name not in self._arrays:
            self._arrays[name] = self._zeros()
        return view_of(self._arrays[name], self._offsets[span.name], parameter)

    def rest(self) -> dict[str, dict]:
        """Return what is not in the arrays: name of a parameter → state."""
        return {
            span.name: {
                name: value for name, value in self._state_of(parameter).items() if not _is_like(value, parameter, name)
            }
            for span, parameter in self.owned()
        }

    def prepare(self, names: Collection[str], rest: Mapping[str, Mapping]) -> None:
        """Make these arrays, to be filled: with the rest of each parameter they are the optimizer's state from its next
        step on."""
        self._arrays, self._rest = {}, rest
        self.include(names)

    def include(self, names: Collection[str]) -> None:
        """Have these arrays, where they are missing: a rank that updates nothing has no state that names them."""
        self._arrays |= {name: self._zeros() for name in names if name not in self._arrays}

    def hand_over(self) -> None:
        """Give the optimizer the state that has been prepared."""
        optimizer, rest, self._rest = self._rule.optimizer, self._rest or {}, None
        assert optimizer is not None, "the script makes a step"
        for span, parameter in self.owned():
            if span.name in rest:
                kept = {name: _copy(value) for name, value in rest[span.name].items()}
                views = {name: self._view(name, span, parameter) for name in self._arrays}
                optimizer.state[parameter] = kept | views

    def __getitem__(self, name: str) -> Array:
        return self._look()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())


def _is_like(value, parameter: torch.Tensor, name: str) -> bool:
    """Whether a value of the state has a number for each of the parameter's."""
    return (
        isinstance(value, torch.Tensor)
        and name != STEP
        and value.shape == parameter.shape
        and value.dtype == parameter.dtype != torch.bfloat16
    )
