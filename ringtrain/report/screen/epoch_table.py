"""The epochs of a run as rows under one head, with as many columns as fit the screen.

::
                train loss     acc test loss     acc        rate examples/s   time
    epoch  1/20     1.5000  50.00%    0.7500  87.50% *      0.05     12,346   1:05
"""

from collections.abc import Iterator, Mapping

from ringtrain.humanize import RATE
from ringtrain.report.events import EpochEnded, Iteration, RunStarted
from ringtrain.report.screen.words import BEST, accuracy_percent, clock, epoch_of, metric_name, metric_value
from ringtrain.show.tables import fixed_line

HEADS = {"epoch": "", "train acc": "acc", "test acc": "acc", "best": ""}  # of the other columns: their names
DROPPED = ("apart", RATE, "rate", "train acc", "time", "train loss", "test loss")  # for a narrow screen, in this order

Cells = Mapping[str, tuple[str, int]]  # column → (text, characters with the gap before it)


class Epochs:
    """The epoch table of one run."""

    def __init__(self, run: RunStarted):
        self.run = run
        self._shown: list[str] = []  # columns of the last head

    def lines(self, event: EpochEnded, last: Iteration | None, best: bool, width: int | None) -> Iterator[str]:
        """Return the row of an epoch, after a head if the columns changed.

        last:  its last iteration, for the rate and examples/s
        best:  whether its test accuracy is higher than any before
        width: of the screen, in characters; None if all columns fit
        """
        cells = self._cells(event, last, best)
        for name in (*map(metric_name, reversed(self.run.metrics)), *DROPPED):
            if width is not None and len(_joined(cells)) > width:
                cells.pop(name, None)
        if list(cells) != self._shown:
            self._shown = list(cells)
            yield _joined({name: (HEADS.get(name, name), size) for name, (_, size) in cells.items()})
        yield _joined(cells)

    def _cells(self, event: EpochEnded, last: Iteration | None, best: bool) -> dict[str, tuple[str, int]]:
        number = epoch_of(event.epoch, self.run)
        cells = {"epoch": (number, 1 + len(number)), "train loss": (_loss(event.train_loss), 11)}
        if event.train_accuracy is not None:
            cells["train acc"] = (accuracy_percent(event.train_accuracy), 8)
        if self.run.test_examples:
            cells["test loss"] = (_loss(event.test_loss), 10)
            if self.run.accuracy:
                cells["test acc"] = ("-" if event.test_accuracy is None else accuracy_percent(event.test_accuracy), 8)
            for name in self.run.metrics:
                cells[metric_name(name)] = (metric_value(name, (event.test_metrics or {}).get(name)), 10)
            cells["best"] = (BEST if best else "", 2)
        if event.distance is not None or "apart" in self._shown:  # how far ranks are from their mean
            cells["apart"] = ("-" if event.distance is None else f"{event.distance:.3g}", 10)
        cells["rate"] = (f"{last.lr:.4g}" if last else "-", 10)
        cells[RATE] = (f"{last.images_per_s:,.0f}" if last else "-", 11)
        cells["time"] = (clock(event.seconds), 7)
        return cells


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _joined(cells: Cells) -> str:
    return fixed_line((text, size - 1) for text, size in cells.values())
