"""The times of a network's layers on one rank, from files of ``ringtrain time --json``, or of ``--profile`` of a script
(:mod:`ringtrain.train.start.script_profile`).

A file is of a number of ranks a node, which compete for its memory, and of a batch of a rank. Times at another batch
are on the line through the two nearest ones that were measured with as many ranks a node, or in proportion where there
is one. More ranks than cores take turns.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.exchange.parts import parts_of
from ringtrain.exchange.servers.shards import divide_ownership, in_even_order
from ringtrain.humanize import plural
from ringtrain.memory.arena import lay_out
from ringtrain.memory.buckets import Bucket, make_buckets
from ringtrain.memory.spans import Fill, Parameter, Span
from ringtrain.nn import spec
from ringtrain.nn.graph import Graph
from ringtrain.records import SOME, Rules, load

FILE = "file of `ringtrain time MODEL --json`"
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
class MeasuredLayer:
    """A layer, or the work beside layers, which has no kind."""

    layer: str
    kind: str
    forward_s: float | None
    backward_s: float | None


@dataclass(frozen=True, slots=True)
class ProfiledBucket:
    """A bucket of DDP's own reducer. parameters: their names"""

    nbytes: Annotated[int, Rules(key="bytes")]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class LayerFile:
    """One file. ``batch``: of all ranks; ``iteration_s``: of the training loop; ``records``: whether a device records
    its work. Of a script's profile: ``threads`` of a rank; ``move_s``, in which an array as long as the weights is read
    or written; ``parameters``, the shape of each; ``buckets``"""

    model: Annotated[str, Rules(key="header.model")]
    dtype: Annotated[str, Rules(key="header.dtype")]
    batch: Annotated[int, Rules(key="header.batch", low=1)]
    all_ranks: Annotated[int, Rules(key="header.ranks", low=1)]
    hosts: Annotated[tuple[str, ...], Rules(key="header.host_by_rank", lengths=SOME)]
    cores: Annotated[int, Rules(key="header.host_cores", low=1)]
    held_bytes: Annotated[int, Rules(key="header.held_bytes")]
    peak_bytes: Annotated[int, Rules(key="header.peak_bytes")]
    iteration_s: Annotated[float, Rules(key="totals.iteration_s")]
    rows: tuple[MeasuredLayer, ...]
    records: Annotated[bool, Rules(key="header.records")] = False
    threads: Annotated[int, Rules(key="header.threads", low=1)] = 1
    move_s: Annotated[float | None, Rules(key="header.move_s")] = None
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buckets: tuple[ProfiledBucket, ...] = ()

    def __post_init__(self) -> None:
        if not self._layers_s > 0:
            raise ValueError("its layers take no time")

    @property
    def ranks(self) -> int:
        """The ranks on a node."""
        return self.hosts.count(self.hosts[0])

    @property
    def images(self) -> float:
        """The images of a rank."""
        return self.batch / self.all_ranks

    @cached_property
    def _layers_s(self) -> float:
        return sum((row.forward_s or 0.0) + (row.backward_s or 0.0) for row in self.rows)

    def times(self, name: str) -> tuple[float, float]:
        """Return the seconds forward and backward of a row, each of which is of the rank that is the slowest in it: as
        part of an iteration of the training loop."""
        row = next(row for row in self.rows if row.layer == name)
        whole = self.iteration_s / self._layers_s
        return whole * (row.forward_s or 0.0), whole * (row.backward_s or 0.0)


class LayerTimes:
    """The layers of one network, of all its files. ``notes`` says what was not measured but taken from nearby.

    Raises UsageError for files that are none, or of several networks.
    """

    def __init__(self, paths: Sequence[str], title: str = FILE):
        self.files = [load(LayerFile, path, title, {"low": 0}) for path in paths]
        self.first = self.files[0]
        self.model = self.first.model
        for path, file in zip(paths, self.files, strict=True):
            if (file.model, file.parameters) != (self.model, self.first.parameters):
                raise UsageError(f"{path} is of model {file.model}, not of {self.model}: give files of one model")
        self.names = [row.layer for row in self.first.rows if row.kind]
        self.notes: dict[str, None] = {}

    @cached_property
    def _graph(self) -> Graph:
        return spec.load_model(self.model).graph()

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The parameters of the network, as they lie in the arena."""
        if not self.is_script:
            return lay_out(self._graph.parameters())
        shapes, fill = self.first.parameters.items(), Fill("constant")
        return lay_out(tuple((n, Parameter(n, s, fill, "weight" if len(s) > 1 else "bias")) for n, s in shapes))

    @property
    def is_script(self) -> bool:
        """Whether these are profiles of a script of PyTorch."""
        return bool(self.first.parameters)

    def buckets(self, config: ExchangeConfig, bucket_bytes: int) -> list[Bucket]:
        """Return the buckets of an exchange; where DDP's own reducer sums a script's gradients, this one's."""
        is_plain = replace(config, bucket_bytes=bucket_bytes) == ExchangeConfig()
        if not is_plain or not self.first.buckets:
            return make_buckets(self.spans, self.itemsize, bucket_bytes)
        spans = {span.name: span for span in self.spans}
        return [Bucket(0, 0, tuple(spans[n] for n in each.parameters), each.nbytes) for each in self.first.buckets]

    def carried_out(self, config: ExchangeConfig, ranks: int) -> ExchangeConfig:
        """Return the exchange that carries out a strategy: each of a script's parameters stays whole, at an owner."""
        if self.is_script and parts_of(config).in_halves:
            return replace(config, sync="server", servers=min(ranks, len(self.first.parameters)))
        return config

    def server_shares(self, config: ExchangeConfig) -> list[float]:
        """Return the share of the weights that each server has."""
        servers = parts_of(config).owners
        if not self.is_script:
            return [1 / servers] * servers
        table = [(span.name, span.parameter) for span in self.spans]
        spans = lay_out(tuple(table[index] for index in in_even_order(self.spans, servers)))
        counts = [sum(span.count for span in part) for part in divide_ownership(spans, servers, whole=True)]
        return [count / sum(counts) for count in counts]

    @property
    def example_bytes(self) -> tuple[float, float]:
        """The bytes of an example as data sets hold it, one for each value, and of the network's outputs for it, which
        the root alone sends and no script has."""
        if self.is_script:
            return 0.0, 0.0
        return math.prod(self._graph.input_shape), self.itemsize * math.prod(self._graph.shapes[self._graph.output])

    @property
    def itemsize(self) -> int:
        return 8 if self.first.dtype == "float64" else 4

    @property
    def state_arrays(self) -> int:
        """The arrays of the optimizer's state, each as long as the weights."""
        return round(self.first.held_bytes / (self.spans[-1].stop * self.itemsize)) - 2

    def other_bytes(self, images: float) -> float:
        """Return the bytes of a rank beside its weights, gradients and state, at this batch of a rank."""
        file = min(self.files, key=lambda file: abs(file.images - images))
        return (file.peak_bytes - file.held_bytes) * max(1.0, images / file.images)

    def of_rank(self, images: float, ranks: int) -> RankTimes:
        """Return the times of a rank with a batch of ``images``, one of ``ranks`` on its node."""
        files, factor = self._files_of(ranks)
        line = self._line(sorted(files, key=lambda file: file.images), images)

        def at(name: str) -> tuple[float, ...]:
            return tuple(factor * sum(weight * file.times(name)[phase] for weight, file in line) for phase in range(2))

        layers = tuple(LayerTime(name, *at(name)) for name in self.names)
        beside = [row.layer for row in self.first.rows if not row.kind and row.layer != UPDATE]
        update = files[0].times(UPDATE)[1] * factor  # of the weights: the same at every batch
        return RankTimes(layers, update, sum(at(name)[1] for name in beside))

    def _files_of(self, ranks: int) -> tuple[list[LayerFile], float]:
        """Return the files of so many ranks a node, or of the nearest number, and the factor of their times."""
        nearest = min({file.ranks for file in self.files}, key=lambda count: (abs(math.log(count / ranks)), count))
        files = [file for file in self.files if file.ranks == nearest]
        if nearest == ranks:
            return files, 1.0
        taken = f"layers of {plural(ranks, 'rank')} a node are taken as measured with {nearest} a node"
        self.notes[f"{taken}, for want of a file"] = None
        if self.first.records:  # each rank computes on a device of its own
            return files, 1.0
        cores, threads = files[0].cores, files[0].threads
        factor = max(1.0, ranks * threads / cores) / max(1.0, nearest * threads / cores)
        if factor > 1:
            of_threads = f" of {threads} threads" if threads > 1 else ""
            shared = f"{plural(ranks, 'rank')}{of_threads} a node share {plural(cores, 'core')}"
            self.notes[f"{shared}: layers take {factor:.1f} times as long as measured"] = None
        return files, factor

    def _line(self, files: list[LayerFile], images: float) -> list[tuple[float, LayerFile]]:
        """Return files with weights whose sum of times is that at ``images``."""
        sizes = [file.images for file in files]
        if images in sizes:
            return [(1.0, files[sizes.index(images)])]
        if len(set(sizes)) == 1:
            self.notes[f"layers at other batches of a rank than {sizes[0]:g} are taken in proportion"] = None
            return [(images / sizes[0], files[0])]
        above = min(max(bisect_left(sizes, images), 1), len(sizes) - 1)
        low, high = files[above - 1], files[above]
        if images < low.images:
            return [(images / low.images, low)]
        share = (images - low.images) / (high.images - low.images)
        return [(1 - share, low), (share, high)]
