"""The times of a network's layers on one rank, from files of ``ringtrain time --json``.

A file is of a number of ranks a node, which compete for its memory, and of a batch of a rank. Times at another batch
are on the line through the two nearest ones that were measured with as many ranks a node, or in proportion where there
is one. More ranks than cores take turns.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.nn import spec
from ringtrain.nn.arena import lay_out
from ringtrain.nn.base import Span
from ringtrain.parsing import parse_json, read_text
from ringtrain.plan import texts

LARGEST_BYTES = 64 << 20  # of a file
UPDATE = "update"  # the row of the optimizer's update


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer; backward 0 where none is needed."""

    name: str
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The work of one iteration of a rank: its layers, the update of all weights, and the work beside both."""

    layers: tuple[LayerTime, ...]
    update_s: float
    beside_s: float

    @property
    def compute_s(self) -> float:
        """Seconds without the update."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers) + self.beside_s


@dataclass(frozen=True, slots=True)
class LayerFile:
    """One file. ranks: on a node; images: of a rank; cores: of a node; whole: the iteration of the training loop, over
    the sum of its rows, each of which is of the rank that is the slowest in it"""

    ranks: int
    images: float
    cores: int
    rows: tuple[dict, ...]
    header: dict
    whole: float

    def times(self, name: str) -> tuple[float, float]:
        row = next(row for row in self.rows if row["layer"] == name)
        return self.whole * (row["forward_s"] or 0.0), self.whole * (row["backward_s"] or 0.0)


class LayerTimes:
    """The layers of one network, of all its files. ``notes`` says what was not measured but taken from nearby.

    Raises UsageError for files that are none, or of several networks.
    """

    def __init__(self, paths: Sequence[str]):
        self.files = [read_layers(path) for path in paths]
        self.model = self.files[0].header["model"]
        for path, file in zip(paths, self.files, strict=True):
            if file.header["model"] != self.model:
                raise UsageError(
                    f"{path} is of model {file.header['model']}, not of {self.model}: give files of one model"
                )
        self.names = [row["layer"] for row in self.files[0].rows if row["kind"]]
        self.notes: dict[str, None] = {}

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The parameters of the network, as they lie in the arena."""
        return lay_out(spec.load_model(self.model).graph().parameters())

    @property
    def itemsize(self) -> int:
        return 8 if self.files[0].header["dtype"] == "float64" else 4

    @property
    def streams(self) -> bool:
        """Whether a device computes, beside which exchanges need no core."""
        return bool(self.files[0].header.get("records"))

    @property
    def batch(self) -> int:
        """The batch of all ranks in the first file."""
        return self.files[0].header["batch"]

    @property
    def state_bytes(self) -> int:
        """Bytes of weights, gradients and the optimizer's state."""
        return self.files[0].header["held_bytes"]

    @property
    def state_arrays(self) -> int:
        """The arrays of the optimizer's state, each as long as the weights."""
        return round(self.state_bytes / (self.spans[-1].stop * self.itemsize)) - 2

    def other_bytes(self, images: float) -> float:
        """Return the bytes of a rank beside its weights, gradients and state, at this batch of a rank."""
        file = min(self.files, key=lambda file: abs(file.images - images))
        return (file.header["peak_bytes"] - file.header["held_bytes"]) * max(1.0, images / file.images)

    def of_rank(self, images: float, ranks: int) -> RankTimes:
        """Return the times of a rank with a batch of ``images``, one of ``ranks`` on its node."""
        files, factor = self._files_of(ranks)
        line = self._line(sorted(files, key=lambda file: file.images), images)

        def at(name: str) -> tuple[float, ...]:
            return tuple(factor * sum(weight * file.times(name)[phase] for weight, file in line) for phase in range(2))

        layers = tuple(LayerTime(name, *at(name)) for name in self.names)
        beside = [row["layer"] for row in self.files[0].rows if not row["kind"] and row["layer"] != UPDATE]
        update = files[0].times(UPDATE)[1] * factor  # of the weights: the same at every batch
        return RankTimes(layers, update, sum(at(name)[1] for name in beside))

    def _files_of(self, ranks: int) -> tuple[list[LayerFile], float]:
        """Return the files of so many ranks a node, or of the nearest number, and the factor of their times."""
        nearest = min({file.ranks for file in self.files}, key=lambda count: (abs(math.log(count / ranks)), count))
        files = [file for file in self.files if file.ranks == nearest]
        if nearest == ranks:
            return files, 1.0
        self._note(
            f"layers of {plural(ranks, 'rank')} a node are taken as measured with {nearest} a node, for want of a file"
        )
        if self.streams:  # each rank computes on a device of its own
            return files, 1.0
        cores = files[0].cores
        factor = max(1.0, ranks / cores) / max(1.0, nearest / cores)
        if factor > 1:
            self._note(
                f"{plural(ranks, 'rank')} a node share {plural(cores, 'core')}: layers take {factor:.1f} times as "
                "long as measured"
            )
        return files, factor

    def _line(self, files: list[LayerFile], images: float) -> list[tuple[float, LayerFile]]:
        """Return files with weights whose sum of times is that at ``images``."""
        sizes = [file.images for file in files]
        if images in sizes:
            return [(1.0, files[sizes.index(images)])]
        if len(set(sizes)) == 1:
            self._note(f"layers at other batches of a rank than {f'{sizes[0]:g}'} are taken in proportion")
            return [(images / sizes[0], files[0])]
        above = min(max(bisect_left(sizes, images), 1), len(sizes) - 1)
        low, high = files[above - 1], files[above]
        if images < low.images:
            return [(images / low.images, low)]
        share = (images - low.images) / (high.images - low.images)
        return [(1 - share, low), (share, high)]

    def _note(self, text: str) -> None:
        self.notes[text] = None


def read_layers(path: str) -> LayerFile:
    """Read a file of ``ringtrain time --json``. Raises UsageError."""
    try:
        found = parse_json(read_text(path, LARGEST_BYTES))
        header, rows = found["header"], found["rows"]
        node = header["host_by_rank"][0]
        on_node = sum(host == node for host in header["host_by_rank"])
        images = header["batch"] / header["ranks"]
        layers_s = sum((row["forward_s"] or 0.0) + (row["backward_s"] or 0.0) for row in rows)
        whole = found["totals"]["iteration_s"] / layers_s
        cores = header["host_cores"]
        if type(cores) is not int or cores < 1:
            raise ValueError(texts.BAD_FIELD(name="host_cores", value=cores))
        return LayerFile(on_node, images, cores, tuple(rows), header, whole)
    except OSError as error:
        raise UsageError(texts.NO_LAYERS(path=path, reason=error.strerror)) from None
    except ValueError as error:
        raise UsageError(texts.NO_LAYERS(path=path, reason=error)) from None
    except (KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise UsageError(texts.NO_LAYERS(path=path, reason=f"it lacks {error}")) from None
