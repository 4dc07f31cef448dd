"""PyTorch's clipping and gradient scaler where an engine makes the step: sums are with their owners, or have left."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.nn.utils import clip_grad

from ringtrain.exchange.parts import ALL
from ringtrain.torch.engine import Engine, Gradients

Pairs = tuple[list[tuple[Engine, Gradients]], list[torch.Tensor]]


def install(
    engines_of: Callable[[torch.optim.Optimizer], list[Engine]],
    make_step: Callable[[torch.optim.Optimizer, Sequence[Engine]], None],
    engines: Sequence[Engine],
) -> None:
    """Replace PyTorch's functions by ones that know engines; ``engines``: all that there are, as they come and go."""
    _install_clipping(engines)
    _install_scaler(engines_of, make_step, engines)


# ── clipping ──────────────────────────────────────────────────────────────────────────────────────────────────
def _install_clipping(engines: Sequence[Engine]) -> None:
    clip, total_norm, clip_by_norm, clip_by_value = (
        clip_grad.clip_grad_norm_,
        clip_grad._get_total_norm,
        clip_grad._clip_grads_with_norm_,
        clip_grad.clip_grad_value_,
    )

    clipped: list[torch.Tensor] = []  # parameters of the call under way: a rank may have the gradient of none

    def clip_grad_norm_(parameters, *arguments, **named) -> torch.Tensor:
        clipped[:] = _listed(parameters)
        try:
            return clip(clipped[:] or parameters, *arguments, **named)
        finally:
            clipped.clear()

    @torch.no_grad()
    def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None) -> torch.Tensor:
        tensors = _listed(tensors)
        summed, rest = _sorted(engines, tensors, clipped)
        if not summed:
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        norms = [total_norm(rest, norm_type)] if rest else []
        for engine, owned in summed:
            local = math.inf if engine.overflow else float(total_norm([gradient for _, gradient in owned], norm_type))
            parts = [local] if engine.parts.partners == ALL else engine.transport.gather_json(local)
            norms += [torch.tensor(norm, dtype=torch.float64) for norm in parts]
        whole = torch.stack([norm.to(torch.float64) for norm in norms])
        return total_norm([whole], norm_type, error_if_nonfinite).to((tensors or clipped)[0].dtype)

    @torch.no_grad()
    def clip_grads_with_norm_(parameters, max_norm, total_norm, foreach=None) -> None:
        summed, rest = _sorted(engines, _gradients_of(parameters := _listed(parameters)), parameters)
        if not summed:
            clip_by_norm(parameters, max_norm, total_norm, foreach)
            return
        factor = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
        for gradient in [gradient for _, owned in summed for _, gradient in owned] + rest:
            gradient.mul_(factor)

    @torch.no_grad()
    def clip_grad_value_(parameters, clip_value, foreach=None) -> None:
        summed, rest = _sorted(engines, _gradients_of(parameters := _listed(parameters)), parameters)
        if not summed:
            clip_by_value(parameters, clip_value, foreach)
            return
        for gradient in [gradient for _, owned in summed for _, gradient in owned] + rest:
            gradient.clamp_(-float(clip_value), float(clip_value))

    clip_grad.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    clip_grad._get_total_norm = torch.nn.utils.get_total_norm = get_total_norm
    clip_grad._clip_grads_with_norm_ = torch.nn.utils.clip_grads_with_norm_ = clip_grads_with_norm_
    clip_grad.clip_grad_value_ = torch.nn.utils.clip_grad_value_ = clip_grad_value_


def _listed(tensors: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _gradients_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _sorted(
    engines: Sequence[Engine], gradients: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor] = ()
) -> Pairs:
    """Return the gradients by the engine whose sums they are part of, each with what this rank owns of them, and the
    others. A parameter that only other ranks' backward has reached counts if it is among ``parameters``, or where all
    of its module do. Collective."""
    asked = {gradient.data_ptr() for gradient in gradients}
    named = {id(parameter) for parameter in parameters}
    summed, rest = [], list(gradients)
    for engine in engines:
        addresses = {gradient.data_ptr(): id(parameter) for parameter, gradient in engine.gradients()}
        if not engine.sums_for_step or not (addresses.keys() & asked or (engine.begun and engine.ids & named)):
            continue
        rest = [gradient for gradient in rest if gradient.data_ptr() not in addresses]
        unasked = {each for address, each in addresses.items() if address not in asked}
        left_out = engine.ids - named if named else unasked
        summed.append((engine, [each for each in engine.complete() if id(each[0]) not in left_out]))
    return summed, rest


# ── the gradient scaler ───────────────────────────────────────────────────────────────────────────────────────
def _install_scaler(engines_of, make_step, engines: Sequence[Engine]) -> None:
    scale, unscale, step = GradScaler.scale, GradScaler._unscale_grads_, GradScaler.step

    def scale_and_tell(self: GradScaler, outputs):
        scaled = scale(self, outputs)
        for engine in engines:
            engine.scale = self.get_scale()
        return scaled

    def unscale_others(self: GradScaler, optimizer, inverse_scale, found_inf, allow_fp16):
        """The gradients of engines that make the step leave now, without the scale; an overflow on any rank counts on
        all that are together."""
        steppers = engines_of(optimizer)
        if not steppers:
            return unscale(self, optimizer, inverse_scale, found_inf, allow_fp16)
        for engine in steppers:
            engine.steps_by_scaler = True
            engine.leave()
        hidden = [each for engine in steppers for each in engine.hide()]
        per_device = unscale(self, optimizer, inverse_scale, found_inf, allow_fp16)
        for parameter, gradient in hidden:
            parameter.grad = gradient
        overflow = any(engine.overflow for engine in steppers)
        per_device.setdefault(torch.device("cpu"), found_inf).add_(float(overflow))
        return per_device

    def step_or_drop(self: GradScaler, optimizer, *arguments, **named):
        """An iteration whose step is left out is complete all the same."""
        steppers = engines_of(optimizer)
        if steppers and self.is_enabled() and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)
        result = step(self, optimizer, *arguments, **named)
        dropped = [engine for engine in steppers if engine.begun]
        for engine in dropped:
            engine.attach(optimizer)
            engine.drop()
        if dropped:
            make_step(optimizer, dropped)
        return result

    GradScaler.scale, GradScaler._unscale_grads_, GradScaler.step = scale_and_tell, unscale_others, step_or_drop
