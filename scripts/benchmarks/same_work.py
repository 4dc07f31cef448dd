"""Comparison of two nets' work in a training pass: each layer's output, the loss, the gradient of every parameter.

A difference is ‖a - b‖/‖b‖, where b is the peer's. What differs first is named: going forward the first layer whose
output is apart, going back the first parameter whose gradient is. A gradient's share of the peer's, ⟨a, b⟩/⟨b, b⟩, is
held more closely: what rounding adds hardly points along b, and what a wrong kernel multiplies by does. Needs NumPy
alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LOSS_SCALE = 1024  # of float16, on both sides
EXAMPLES = 4  # whose outputs are compared; all take part in gradients


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The most that may be apart: outputs of layers and the loss; the gradient as a whole; that of one parameter; its
    share from 1."""

    output: float
    gradient: float
    parameter: float
    share: float


# More than twice the measured difference of equal nets on the CPU: docs/gpu.md. In batch normalisation most of a
# gradient cancels, and earlier rounding stays, so that one parameter's may be far off;
# its share is not. tf32 has the digits of float16.
TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-12, 1e-10, 1e-11),
    "float32": Tolerance(1e-4, 5e-4, 2e-2, 5e-3),
    "tf32": Tolerance(1e-2, 5e-2, 2.5e-1, 5e-2),
    "bfloat16": Tolerance(3e-2, 1e-1, 7.5e-1, 2.5e-1),
    "float16": Tolerance(1e-2, 5e-2, 2.5e-1, 5e-2),
}
MANY = 256  # elements over which noise evens out: parameters of fewer are joined with others of their kind
# A gradient that is zero but for rounding (of a bias before a normalisation) is held against this part of the others.
LEAST = 1e-3
# Of the peer's own distance from float64, in nets that are deeper than those measured; limits, the second of shares.
TIMES, CAP, SHARE_CAP = 3, 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What a training pass computes. outputs: of layers, by name, in the net's order, of some examples (the peer's may
    be of more layers: a ReLU that ringtrain folds into what is before it has no output of its own there); gradients: of
    parameters, by full name, in the same order, each in ringtrain's layout."""

    outputs: Mapping[str, np.ndarray]
    loss: float
    gradients: Mapping[str, np.ndarray]


def save(path: Path, work: Work) -> None:
    """Write the work of another process's side to a file, for :func:`load`."""
    arrays = {f"output {name}": array for name, array in work.outputs.items()}
    arrays |= {f"gradient {name}": array for name, array in work.gradients.items()}
    np.savez(path, loss=work.loss, **arrays)


def load(path: Path) -> Work:
    with np.load(path) as arrays:
        kinds = {"output": {}, "gradient": {}}
        for key in arrays.files:
            kind, _, name = key.partition(" ")
            if name:
                kinds[kind][name] = arrays[key]
        return Work(kinds["output"], float(arrays["loss"]), kinds["gradient"])


def apart(a: np.ndarray, b: np.ndarray, least: float = 0.0) -> float:
    """Return ‖a - b‖ / max(‖b‖, least); infinite if a value is not finite, or shapes differ."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    difference, norm = float(np.linalg.norm(a - b)), max(float(np.linalg.norm(b)), least)
    if not math.isfinite(difference) or not math.isfinite(norm):
        return math.inf
    return difference / norm if norm else (math.inf if difference else 0.0)


def outputs_apart(own: Work, peer: Work) -> dict[str, float]:
    return {name: apart(found, peer.outputs[name]) for name, found in own.outputs.items()}


def gradients_apart(own: Work, peer: Work) -> dict[str, float]:
    least = _least(peer)
    return {
        name: apart(own.gradients[name], wanted, least * math.sqrt(wanted.size))
        for name, wanted in peer.gradients.items()
    }


def _least(peer: Work) -> float:
    """Return the least element: a gradient with smaller ones is rounding alone."""
    count = sum(each.size for each in peer.gradients.values())
    squares = sum(float(np.sum(np.square(each, dtype=np.float64))) for each in peer.gradients.values())
    return LEAST * math.sqrt(squares / count)


def shares(own: Work, peer: Work) -> dict[str, float]:
    """⟨a, b⟩/⟨b, b⟩ of each parameter of :data:`MANY` elements, and of smaller ones by their kind; of none that is
    rounding alone."""
    found, least = {}, _least(peer)
    for name, names in _joined(peer).items():
        a, b = (_one([work.gradients[each] for each in names]) for work in (own, peer))
        if np.linalg.norm(b) > least * math.sqrt(b.size):
            found[name] = float(a @ b) / float(b @ b)
    return found


def _one(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([each.ravel() for each in arrays], dtype=np.float64)


def _joined(work: Work) -> dict[str, list[str]]:
    groups = {}
    for name, gradient in work.gradients.items():
        key = repr(name) if gradient.size >= MANY else f"each small {name.rpartition('.')[2]}"
        groups.setdefault(key, []).append(name)
    return groups


def whole_apart(own: Work, peer: Work) -> float:
    return apart(*(np.concatenate([work.gradients[name].ravel() for name in peer.gradients]) for work in (own, peer)))


def refusal(own: Work, peer: Work, precision: str, exact: Work | None = None) -> str:
    """Why these are not the same net; nothing where they are. ``exact``: the peer's in float64: then own work is held
    against that, and may be as far from it as the tolerance says, or :data:`TIMES` as far as the peer's own is."""
    strangers = sorted((own.outputs.keys() - peer.outputs.keys()) | (own.gradients.keys() ^ peer.gradients.keys()))
    if strangers:
        return f"one of them alone has {', '.join(strangers)}"
    most, base = TOLERANCES[precision], exact or peer
    rounded = outputs_apart(Work({name: peer.outputs[name] for name in own.outputs}, peer.loss, {}), base)
    for name, found in outputs_apart(own, base).items():
        allowed = _allowed(most.output, rounded[name])
        if not found <= allowed:
            return f"the output of layer {name!r} is {found:.2g} apart, the first that is ({precision}: {allowed:.2g})"
    off, rounding = (abs(each.loss - base.loss) / max(1.0, abs(base.loss)) for each in (own, peer))
    if not off <= _allowed(most.output, rounding):
        return f"the loss is {own.loss:.9g}, PyTorch's is {base.loss:.9g} ({precision}: at most {most.output:g} apart)"
    return _gradient_refusal(own, peer, base, precision)


def _allowed(tolerance: float, rounding: float, cap: float = CAP) -> float:
    return max(tolerance, min(cap, TIMES * rounding))


def _gradient_refusal(own: Work, peer: Work, base: Work, precision: str) -> str:
    most, found, rounded = TOLERANCES[precision], gradients_apart(own, base), gradients_apart(peer, base)
    for name in reversed(found):
        allowed = _allowed(most.parameter, rounded[name])
        if not found[name] <= allowed:
            return (
                f"the gradient of {name!r} is {found[name]:.2g} apart, the first on the way back ({precision}: "
                f"{allowed:.2g}): its layer is wrong, or the one that hands it its gradient"
            )
    whole, allowed = whole_apart(own, base), _allowed(most.gradient, whole_apart(peer, base))
    if not whole <= allowed:
        worst = max(found, key=found.get)
        return f"the gradient is {whole:.2g} apart ({precision}: {allowed:.2g}), most that of {worst!r}"
    return _share_refusal(shares(own, base), shares(peer, base), precision)


def _share_refusal(found: dict[str, float], rounded: dict[str, float], precision: str) -> str:
    for name in reversed(found):
        allowed = _allowed(TOLERANCES[precision].share, abs(rounded[name] - 1), SHARE_CAP)
        if not abs(found[name] - 1) <= allowed:
            return (
                f"the gradient of {name} is {found[name]:.3g} times PyTorch's, the last that is not 1 ± {allowed:.2g} "
                f"({precision}): its layer is wrong, or the one that hands it its gradient"
            )
    return ""


def summary(own: Work, peer: Work) -> dict:
    """Return the figures of a row about nets that are the same."""
    outputs, gradients = outputs_apart(own, peer), gradients_apart(own, peer)
    worst, layer = max(gradients, key=gradients.get), max(outputs, key=outputs.get)
    return {
        "loss": own.loss,
        "loss_of_torch": peer.loss,
        "outputs_apart": outputs[layer],
        "worst_layer": layer,
        "gradient_apart": whole_apart(own, peer),
        "worst_parameter": worst,
        "worst_parameter_apart": gradients[worst],
        "worst_share_off": max((abs(share - 1) for share in shares(own, peer).values()), default=0.0),
    }


def told(found: dict) -> str:
    return (
        f"same: loss {found['loss']:.7g} and {found['loss_of_torch']:.7g}, outputs at most "
        f"{found['outputs_apart']:.1e} apart ({found['worst_layer']}), gradient {found['gradient_apart']:.1e}, "
        f"worst parameter {found['worst_parameter']} {found['worst_parameter_apart']:.1e}, "
        f"shares {found['worst_share_off']:.1e} off"
    )
