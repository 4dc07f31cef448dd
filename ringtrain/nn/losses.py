"""Losses: what a network is trained for, by name; each with its check of a network's output and of the labels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import ConfigError, ModelError, nearest
from ringtrain.nn import shapes, texts
from ringtrain.nn.base import Pass, Shape


@dataclass(frozen=True, slots=True)
class LabelForm:
    """The labels of one example: their shape, () for one alone; and whether they are values, or class numbers, of which
    -1 does not count."""

    shape: Shape = ()
    values: bool = False


ONE_CLASS_NUMBER = LabelForm()


@dataclass(frozen=True, slots=True)
class Loss(ABC):
    """A loss: a sum over labelled elements, which the exchange's denominator makes their mean.

    name:     of ``--loss``
    accuracy: whether forward and backward count correct elements
    """

    name: ClassVar[str]
    accuracy: ClassVar[bool] = False

    @classmethod
    def make(cls, config: Any) -> "Loss":
        """The loss of a run's configuration."""
        return cls()

    @abstractmethod
    def check(self, output: Shape, labels: LabelForm, classes: int, layer: str, file: Path | None = None) -> None:
        """Raise ModelError unless the output fits the labels. ``layer``: that gives the output; ``classes``: of the
        data set; ``file``: of a bundled model."""

    @abstractmethod
    def forward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array) -> None:
        """Add (sum of losses, correct, labelled elements) to ``totals``: evaluation."""

    @abstractmethod
    def backward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array, denominator: float) -> Array:
        """Do the same, and return d(sum of losses / denominator)/d(outputs). The denominator is the exchange's: an
        all-reduce sums, so the mean is made here; with loss scaling, it is divided by the factor."""

    def predict(self, ctx: Pass, outputs: Array) -> Array:
        """The prediction that the outputs stand for: probabilities, or the outputs themselves."""
        return outputs

    def evaluated(self) -> "Loss":
        """The loss of an evaluation, without what is for training alone."""
        return self


@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropy(Loss):
    """The loss of each example is -sum over classes of target · log softmax(x), target = (1 - smoothing) ·
    onehot + smoothing / K. A label equal to ``ignore`` does not count.

    Source: label smoothing: Szegedy et al. 2016, section 7
    """

    name = "ce"
    accuracy = True
    smoothing: float = 0.0
    ignore: int = -1

    @classmethod
    def make(cls, config: Any) -> "SoftmaxCrossEntropy":
        return cls(config.label_smoothing)

    def check(self, output: Shape, labels: LabelForm, classes: int, layer: str, file: Path | None = None) -> None:
        if output != (classes,):
            count = "1 class" if classes == 1 else f"{classes} classes"
            model = texts.A_MODEL() if file is None else texts.A_COPY(file=file)
            given = {"layer": layer, "shape": shapes.format_shape(output), "count": count, "classes": classes}
            raise ModelError(texts.CLASSES(model=model, **given))

    def forward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array) -> None:
        ctx.ops.softmax_cross_entropy(outputs, labels, None, totals_3, 1.0, self.smoothing, self.ignore)

    def backward(self, ctx: Pass, outputs: Array, labels: Array, totals_3: Array, denominator: float) -> Array:
        dx = ctx.space("loss.dx", outputs.shape)
        scale = _inverse(denominator)
        ctx.ops.softmax_cross_entropy(outputs, labels, dx, totals_3, scale, self.smoothing, self.ignore)
        return dx

    def predict(self, ctx: Pass, outputs: Array) -> Array:
        probabilities = ctx.space("probabilities", outputs.shape)
        ctx.ops.softmax(outputs, probabilities)
        return probabilities

    def evaluated(self) -> "SoftmaxCrossEntropy":
        return SoftmaxCrossEntropy(ignore=self.ignore)


def _inverse(denominator: float) -> float:
    """1 / denominator; 0 for a batch without any label."""
    return 1.0 / denominator if denominator else 0.0


LOSSES: dict[str, type[Loss]] = {kind.name: kind for kind in (SoftmaxCrossEntropy,)}


def make_loss(config: Any) -> Loss:
    """The loss of a run's configuration. Raises ConfigError for an unknown name."""
    if config.loss not in LOSSES:
        raise ConfigError(texts.UNKNOWN_LOSS(name=config.loss, hint=nearest(config.loss, LOSSES)))
    return LOSSES[config.loss].make(config)


def check_output(loss: Loss, graph: Any, data: Any, file: Path | None = None) -> None:
    """Raise ModelError unless the network's output fits the loss and the labels of a data set. ``file``: of a bundled
    model."""
    loss.check(graph.shapes[graph.output], label_form(data.train), len(data.classes), graph.output, file)


def label_form(split: Any) -> LabelForm:
    """The form of the labels of a split."""
    shape, dtype = getattr(split, "label_shape", ()), getattr(split, "label_dtype", np.int32)
    return LabelForm(tuple(shape), np.dtype(dtype).kind == "f")
