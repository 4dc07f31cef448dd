"""Losses: what a network is trained for, by name; each with its check of a network's output and of the labels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import ConfigError, ModelError, nearest
from ringtrain.nn import shapes
from ringtrain.nn.base import Pass, Shape
from ringtrain.nn.metrics import BinaryMetrics, ClassMetrics, Metrics, NoMetrics, ValueMetrics
from ringtrain.nn.shapes import element_count


@dataclass(frozen=True, slots=True)
class LabelForm:
    """The labels of one example: their shape, () for one alone; and whether they are values, or class numbers, of which
    -1 does not count."""

    shape: Shape = ()
    values: bool = False


ONE_CLASS_NUMBER = LabelForm()
NO_LABELS = "the data set has no labels, and --loss {loss} takes {what}: name both, as in FILE.h5:x,y or x.npy,y.npy"
MASK_CLASSES = 256  # of bytes, where 255 often means no label


@dataclass(frozen=True, slots=True)
class Loss(ABC):
    """A loss: a sum over labelled elements, which the exchange's denominator makes their mean.

    name:          of ``--loss``
    accuracy:      whether forward and backward count correct elements
    probabilities: whether :meth:`predict` gives one for each class, along the last axis
    scaled:        whether :meth:`backward` multiplies by ``ctx.factor``; else the caller does"""

    name: ClassVar[str]
    accuracy: ClassVar[bool] = False
    probabilities: ClassVar[bool] = False
    scaled: ClassVar[bool] = False

    @classmethod
    def make(cls, config: Any) -> "Loss":
        """The loss of a run's configuration."""
        return cls()

    @abstractmethod
    def check(self, output: Shape, labels: LabelForm, classes: int, layer: str, file: Path | None = None) -> None:
        """Raise ModelError unless the output fits the labels. ``layer``: that gives the output; ``classes``: of the
        data set; ``file``: of a bundled model."""

    @abstractmethod
    def labels_of(self, output: Shape) -> tuple[LabelForm, int | None]:
        """(labels that fit an output, their number of classes; None of values)"""

    @abstractmethod
    def forward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array) -> None:
        """Add (sum of losses, correct, labelled elements) to ``totals``: evaluation."""

    @abstractmethod
    def backward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array, denominator: float) -> Array:
        """Do the same, and return d(sum of losses / denominator)/d(outputs). The denominator is the exchange's: an
        all-reduce sums, so the mean is made here."""

    def unusable(self, labels: np.ndarray, output: Shape) -> np.ndarray:
        """Which labels make the loss NaN, whatever the output. Shapes: [n, ...] → bool, the same"""
        return ~np.isfinite(labels)

    def metrics(self, output: Shape, labels: LabelForm, whole: bool = False, by_class: bool = False) -> Metrics:
        """What an evaluation tells beside loss and accuracy. whole: whether also what training's own leave out;
        by_class: whether also of each class"""
        return NoMetrics()

    def predict(self, ctx: Pass, outputs: Array) -> Array:
        """The prediction that the outputs stand for: probabilities, or the outputs themselves."""
        return outputs

    def evaluated(self) -> "Loss":
        """The loss of an evaluation, without what is for training alone."""
        return self


@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropy(Loss):
    """The loss of each example is -sum over classes of target · log softmax(x), target = (1 - smoothing) ·
    onehot + smoothing / K. A label equal to ``ignore`` does not count. Dense labels, such as a class of each pixel, are
    examples of their own.

    Source: label smoothing: Szegedy et al. 2016, section 7"""

    name = "ce"
    accuracy = True
    probabilities = True
    scaled = True
    smoothing: float = 0.0
    ignore: int = -1

    @classmethod
    def make(cls, config: Any) -> "SoftmaxCrossEntropy":
        return cls(config.label_smoothing)

    def check(self, output: Shape, labels: LabelForm, classes: int, layer: str, file: Path | None = None) -> None:
        if labels.values:
            one_hot = "if they are one-hot, store y.argmax(axis=1)"
            whole = "if they are whole numbers in a type of floats, store them as int32 (y.astype('int32'))"
            raise ModelError(
                "--loss ce takes class numbers, but the labels are values of shape "
                f"{shapes.format_shape(labels.shape) or '()'}: {one_hot if labels.shape == output else whole}; else "
                "give --loss mse, mae, huber or bce"
            )
        hint = f"if {classes - 1} means no label, give --ignore-label {classes - 1}; else "
        if labels.shape:
            if output[:-1] != labels.shape or (classes and output[-1] != classes):
                each, shape = shapes.format_shape(labels.shape), shapes.format_shape(output)
                wanted = (
                    shapes.format_shape((*labels.shape, classes))
                    if classes
                    else "their shape and the number of classes"
                )
                hint = hint if classes > output[-1] else ""
                if output == labels.shape:
                    hint = "if they are one-hot, store y.argmax(axis=1), or give --loss bce if several may be 1; else "
                raise ModelError(
                    f"the last layer, {layer!r}, gives {shape}, but each label has {each} class numbers, for which "
                    f"--loss ce takes {wanted}: {hint}use a model that ends in this shape, or another data set"
                )
        elif not classes:
            raise ModelError(NO_LABELS.format(loss="ce", what="class numbers"))
        elif output != (classes,):
            count = "1 class" if classes == 1 else f"{classes} classes"
            model = "a model" if file is None else f"give --model a copy of {file}"
            raise ModelError(
                f"the last layer, {layer!r}, gives {shapes.format_shape(output)}, but the data set has {count}: "
                f"{hint if classes == MASK_CLASSES else ''}use another data set, --classes {classes}, "
                f"or {model} that ends in Linear with units = {classes}"
            )

    def labels_of(self, output: Shape) -> tuple[LabelForm, int | None]:
        return LabelForm(output[:-1]), output[-1]

    def forward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array) -> None:
        rows, classes = _rows(outputs, labels)
        ctx.ops.softmax_cross_entropy(rows, classes, None, totals_3, 1.0, self.smoothing, self.ignore)

    def backward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array, denominator: float) -> Array:
        dx = ctx.space("loss.dx", outputs.shape)
        (rows, classes), dx_rows = _rows(outputs, labels), _rows(dx, labels)[0]
        settings = _inverse(denominator), self.smoothing, self.ignore, ctx.factor
        ctx.ops.softmax_cross_entropy(rows, classes, dx_rows, totals_3, *settings)
        return dx

    def unusable(self, labels: np.ndarray, output: Shape) -> np.ndarray:
        return (labels != self.ignore) & ((labels < 0) | (labels >= output[-1]))

    def metrics(self, output: Shape, labels: LabelForm, whole: bool = False, by_class: bool = False) -> Metrics:
        axes = len(labels.shape)
        return ClassMetrics(output[-1], axes > 0, whole, by_class, sequence=axes == 1)

    def predict(self, ctx: Pass, outputs: Array) -> Array:
        probabilities = ctx.space("probabilities", outputs.shape)
        shape = (element_count(outputs.shape[:-1]), outputs.shape[-1])
        ctx.ops.softmax(outputs.reshape(shape), probabilities.reshape(shape))
        return probabilities

    def evaluated(self) -> "SoftmaxCrossEntropy":
        return SoftmaxCrossEntropy(ignore=self.ignore)


def _rows(outputs: Array, labels: Array) -> tuple[Array, Array]:
    """Shapes: outputs [N, ..., K], labels [N, ...] → [M, K], [M]"""
    count = element_count(labels.shape)
    return outputs.reshape((count, outputs.shape[-1])), labels.reshape((count,))


@dataclass(frozen=True, slots=True)
class ValueLoss(Loss):
    """A loss of each value, by :meth:`ringtrain.ops.base.Ops.value_loss`. Outputs and labels have one shape; an extent
    of 1 at its end may be missing on either. ``delta``: of huber"""

    scaled = True
    delta: float = 1.0

    def check(self, output: Shape, labels: LabelForm, classes: int, layer: str, file: Path | None = None) -> None:
        if labels == ONE_CLASS_NUMBER and not classes:
            raise ModelError(NO_LABELS.format(loss=self.name, what="values"))
        if _without_one(output) != _without_one(labels.shape):
            wanted = shapes.format_shape(labels.shape) if _without_one(labels.shape) else "one number"
            remedy = (
                "give --loss ce if labels are classes, or a model that ends in Linear with units = 1"
                if labels == ONE_CLASS_NUMBER
                else "use a model that ends in the labels' shape, or another data set"
            )
            raise ModelError(
                f"the last layer, {layer!r}, gives {shapes.format_shape(output)}, but each label is {wanted}, and "
                f"--loss {self.name} takes outputs and labels of one shape: {remedy}"
            )

    def labels_of(self, output: Shape) -> tuple[LabelForm, int | None]:
        return LabelForm(output, values=True), None

    def forward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array) -> None:
        ctx.ops.value_loss(self.name, _flat(outputs), _flat(labels), None, totals_3, 1.0, self.delta)

    def backward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array, denominator: float) -> Array:
        dx = ctx.space("loss.dx", outputs.shape)
        settings = _inverse(denominator), self.delta, ctx.factor
        ctx.ops.value_loss(self.name, _flat(outputs), _flat(labels), _flat(dx), totals_3, *settings)
        return dx

    def metrics(self, output: Shape, labels: LabelForm, whole: bool = False, by_class: bool = False) -> Metrics:
        return ValueMetrics()


@dataclass(frozen=True, slots=True)
class MeanSquaredError(ValueLoss):
    """(output - label)²"""

    name = "mse"


@dataclass(frozen=True, slots=True)
class MeanAbsoluteError(ValueLoss):
    """|output - label|"""

    name = "mae"


@dataclass(frozen=True, slots=True)
class HuberLoss(ValueLoss):
    """Half the square of a difference up to ``delta``, linear from there. Source: Huber 1964"""

    name = "huber"

    @classmethod
    def make(cls, config: Any) -> "HuberLoss":
        return cls(config.huber_delta)


@dataclass(frozen=True, slots=True)
class BinaryCrossEntropy(ValueLoss):
    """-y · log p - (1 - y) · log(1 - p), p = sigmoid(output), of labels from 0 to 1: of one output, or of several
    classes that do not exclude one another. A class number of -1 does not count."""

    name = "bce"
    accuracy = True

    def unusable(self, labels: np.ndarray, output: Shape) -> np.ndarray:
        return ~((labels >= (-1 if labels.dtype.kind == "i" else 0)) & (labels <= 1))

    def metrics(self, output: Shape, labels: LabelForm, whole: bool = False, by_class: bool = False) -> Metrics:
        return BinaryMetrics(labels.shape[0] if len(labels.shape) == 1 else 1)

    def predict(self, ctx: Pass, outputs: Array) -> Array:
        """The probabilities: sigmoid(x) is the gradient of a label of 0."""
        probabilities, zeros = ctx.space("probabilities", outputs.shape), ctx.space("zeros", (outputs.size,), "int32")
        totals = ctx.space("sums of zeros", (3,), "float64")
        for array in (zeros, totals):
            ctx.ops.fill(array, 0)
        ctx.ops.value_loss(self.name, _flat(outputs), zeros, _flat(probabilities), totals, 1.0)
        return probabilities


def _flat(array: Array) -> Array:
    return array.reshape((array.size,))


def _without_one(shape: Shape) -> Shape:
    return shape[:-1] if shape[-1:] == (1,) else shape


def _inverse(denominator: float) -> float:
    """1 / denominator; 0 for a batch without any label."""
    return 1.0 / denominator if denominator else 0.0


KINDS = (SoftmaxCrossEntropy, MeanSquaredError, MeanAbsoluteError, HuberLoss, BinaryCrossEntropy)
LOSSES: dict[str, type[Loss]] = {kind.name: kind for kind in KINDS}


def make_loss(config: Any) -> Loss:
    """The loss of a run's configuration. Raises ConfigError for an unknown name."""
    if config.loss not in LOSSES:
        raise ConfigError(
            f"--loss {config.loss}: unknown loss (one of your own needs --plugin FILE.py); "
            f"{nearest(config.loss, LOSSES)}"
        )
    return LOSSES[config.loss].make(config)


def check_output(loss: Loss, graph: Any, data: Any, file: Path | None = None) -> None:
    """Raise ModelError unless the network's output fits the loss and the labels of a data set. ``file``: of a bundled
    model."""
    loss.check(graph.shapes[graph.output], label_form(data.train), len(data.classes), graph.output, file)


def label_form(split: Any) -> LabelForm:
    return LabelForm(tuple(split.label_shape), np.dtype(split.label_dtype).kind == "f")
