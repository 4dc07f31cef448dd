"""Softmax cross-entropy, and its check of a network's output."""

from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import ModelError
from ringtrain.nn import shapes, texts


@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropy:
    """The loss of each example is -sum over classes of target · log softmax(x), target = (1 - smoothing) ·
    onehot + smoothing / K. A label equal to ``ignore`` does not count.

    Source: label smoothing: Szegedy et al. 2016, section 7
    """

    smoothing: float = 0.0
    ignore: int = -1

    def forward(self, ctx, logits_NK, labels_N, totals_3) -> None:
        """Add (sum of losses, correct, valid) to ``totals``: evaluation."""
        ctx.ops.softmax_cross_entropy(logits_NK, labels_N, None, totals_3, 1.0, self.smoothing, self.ignore)

    def backward(self, ctx, logits_NK, labels_N, totals_3, denominator: float):
        """Do the same, and return d(sum of losses / denominator)/d(logits). The denominator is the exchange's:
        an all-reduce sums, so the mean is made here; with loss scaling, it is divided by the factor.
        """
        dlogits_NK = ctx.space("loss.dx", logits_NK.shape)
        scale = 1.0 / denominator if denominator else 0.0
        ctx.ops.softmax_cross_entropy(logits_NK, labels_N, dlogits_NK, totals_3, scale, self.smoothing, self.ignore)
        return dlogits_NK


def check_classes(graph, classes: int, file: Path | None = None) -> None:
    """Raise ModelError unless the network's output is one number a class. ``file``: of a bundled model."""
    shape = graph.shapes[graph.output]
    if shape != (classes,):
        count = "1 class" if classes == 1 else f"{classes} classes"
        model = texts.A_MODEL() if file is None else texts.A_COPY(file=file)
        given = {"layer": graph.output, "shape": shapes.format_shape(shape), "count": count, "classes": classes}
        raise ModelError(texts.CLASSES(model=model, **given))
