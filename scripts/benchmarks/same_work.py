"""Comparison of two nets' work in a training pass: each layer's output, the loss, the gradient of every parameter.

A difference is ‖a - b‖/‖b‖, where b is the peer's. What differs first is named: going forward the first layer whose
output is apart, going back the first parameter whose gradient is. A gradient's share of the peer's, ⟨a, b⟩/⟨b, b⟩, is
held more closely: what rounding adds hardly points along b, and what a wrong kernel multiplies by does. Needs NumPy
alone.
"""

import math
from collections.abc import Iterable, Mapping
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


def outputs_apart(ours: Work, peer: Work) -> dict[str, float]:
    return {name: apart(output, peer.outputs[name]) for name, output in ours.outputs.items()}


def gradients_apart(ours: Work, peer: Work) -> dict[str, float]:
    least, pairs = _least(peer), ((name, ours.gradients[name], wanted) for name, wanted in peer.gradients.items())
    return {name: apart(gradient, wanted, least * math.sqrt(wanted.size)) for name, gradient, wanted in pairs}


def _least(peer: Work) -> float:
    """Return the least element: a gradient with smaller ones is rounding alone."""
    count = sum(each.size for each in peer.gradients.values())
    squares = sum(float(np.sum(np.square(each, dtype=np.float64))) for each in peer.gradients.values())
    return LEAST * math.sqrt(squares / count)


def shares(ours: Work, peer: Work) -> dict[str, float]:
    """⟨a, b⟩/⟨b, b⟩ of each parameter of :data:`MANY` elements, and of smaller ones by their kind; of none that is
    rounding alone."""
    groups, least, share_by_name = {}, _least(peer), {}
    for name, gradient in peer.gradients.items():
        key = repr(name) if gradient.size >= MANY else f"each small {name.rpartition('.')[2]}"
        groups.setdefault(key, []).append(name)
    for key, names in groups.items():
        a, b = (_joined(work, names) for work in (ours, peer))
        if np.linalg.norm(b) > least * math.sqrt(b.size):
            share_by_name[key] = float(a @ b) / float(b @ b)
    return share_by_name


def _joined(work: Work, names: Iterable[str]) -> np.ndarray:
    return np.concatenate([work.gradients[name].ravel() for name in names], dtype=np.float64)


def whole_apart(ours: Work, peer: Work) -> float:
    return apart(*(_joined(work, peer.gradients) for work in (ours, peer)))


def refusal(ours: Work, peer: Work, precision: str, exact: Work | None = None) -> str:
    """Why these are not the same net; nothing where they are. ``exact``: the peer's in float64: then our work is held
    against that, and may be as far from it as the tolerance says, or :data:`TIMES` as far as the peer's is."""
    strangers = sorted((ours.outputs.keys() - peer.outputs.keys()) | (ours.gradients.keys() ^ peer.gradients.keys()))
    if strangers:
        return f"one of them alone has {', '.join(strangers)}"
    most, base = TOLERANCES[precision], exact or peer
    rounded = outputs_apart(Work({name: peer.outputs[name] for name in ours.outputs}, peer.loss, {}), base)
    for name, off in outputs_apart(ours, base).items():
        allowed = _allowed(most.output, rounded[name])
        if not off <= allowed:
            return f"the output of layer {name!r} is {off:.2g} apart, the first that is ({precision}: {allowed:.2g})"
    off, rounding = (abs(each.loss - base.loss) / max(1.0, abs(base.loss)) for each in (ours, peer))
    if not off <= _allowed(most.output, rounding):
        return f"the loss is {ours.loss:.9g}, PyTorch's is {base.loss:.9g} ({precision}: at most {most.output:g} apart)"
    return _gradient_refusal(ours, peer, base, precision) or _share_refusal(ours, peer, base, precision)


def _allowed(tolerance: float, rounding: float, cap: float = CAP) -> float:
    return max(tolerance, min(cap, TIMES * rounding))


WRONG_LAYER = "its layer is wrong, or the one that hands it its gradient"


def _gradient_refusal(ours: Work, peer: Work, base: Work, precision: str) -> str:
    most, off, rounded = TOLERANCES[precision], gradients_apart(ours, base), gradients_apart(peer, base)
    for name in reversed(off):
        allowed = _allowed(most.parameter, rounded[name])
        if not off[name] <= allowed:
            where = f"the first on the way back ({precision}: {allowed:.2g}): {WRONG_LAYER}"
            return f"the gradient of {name!r} is {off[name]:.2g} apart, {where}"
    whole, allowed = whole_apart(ours, base), _allowed(most.gradient, whole_apart(peer, base))
    if whole <= allowed:
        return ""
    return f"the gradient is {whole:.2g} apart ({precision}: {allowed:.2g}), most that of {max(off, key=off.get)!r}"


def _share_refusal(ours: Work, peer: Work, base: Work, precision: str) -> str:
    share_by_name, rounded = shares(ours, base), shares(peer, base)
    for name, share in reversed(share_by_name.items()):
        allowed = _allowed(TOLERANCES[precision].share, abs(rounded[name] - 1), SHARE_CAP)
        if not abs(share - 1) <= allowed:
            where = f"the last that is not 1 ± {allowed:.2g} ({precision}): {WRONG_LAYER}"
            return f"the gradient of {name} is {share:.3g} times PyTorch's, {where}"
    return ""


def summary(ours: Work, peer: Work) -> dict:
    """Return the figures of a row about nets that are the same."""
    outputs, gradients = outputs_apart(ours, peer), gradients_apart(ours, peer)
    worst, layer = max(gradients, key=gradients.get), max(outputs, key=outputs.get)
    return {
        "loss": ours.loss,
        "loss_of_torch": peer.loss,
        "outputs_apart": outputs[layer],
        "worst_layer": layer,
        "gradient_apart": whole_apart(ours, peer),
        "worst_parameter": worst,
        "worst_parameter_apart": gradients[worst],
        "worst_share_off": max((abs(share - 1) for share in shares(ours, peer).values()), default=0.0),
    }


def summary_text(row: dict) -> str:
    return (
        f"same: loss {row['loss']:.7g} and {row['loss_of_torch']:.7g}, outputs at most {row['outputs_apart']:.1e} "
        f"apart ({row['worst_layer']}), gradient {row['gradient_apart']:.1e}, worst parameter {row['worst_parameter']} "
        f"{row['worst_parameter_apart']:.1e}, shares {row['worst_share_off']:.1e} off"
    )
