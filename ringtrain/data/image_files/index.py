"""The index of image files: where each example's bytes lie, in compact arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Tables = dict[str, np.ndarray]


# divide(count, work) calls work(number) for each number below count, and returns all results in order, on every rank
# alike. Where there are ranks, they divide the calls among them.
Divide = Callable[[int, Callable[[int], Tables]], list[Tables]]


def alone(count: int, work: Callable[[int], Tables]) -> list[Tables]:
    """Do all of it here."""
    return [work(number) for number in range(count)]


def tables_of(
    names: Sequence[str],
    offsets: Sequence[int],
    sizes: Sequence[int],
    labels: Sequence[int],
    folders: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> Tables:
    """Return the images of a shard, or of the folder of a class, as arrays.

    names:   of members or files, in order
    offsets: of their bytes in the shard; 0 in a folder
    labels:  class numbers; of ``folders`` where there are any
    folders: the classes that the members' folders name, in order; empty if labels are numbers
    left_out: what is beside the images and no label
    """
    return {
        "spans": np.array([offsets, sizes, labels], np.int64).reshape(3, -1),
        "names": joined(names),
        "folders": joined(folders),
        "left_out": np.array([len(left_out)], np.int64),
        "first left out": joined(left_out[:1]),
    }


def joined(names: Sequence[str]) -> np.ndarray:
    """Return names as bytes, each ended by a zero. Shapes: → uint8 [bytes]"""
    return np.frombuffer("".join(f"{name}\0" for name in names).encode(errors="surrogateescape"), np.uint8)


def parted(data: np.ndarray) -> list[str]:
    """Return the names in bytes of :func:`joined`."""
    return bytes(data).decode(errors="surrogateescape").split("\0")[:-1]


@dataclass(frozen=True, slots=True)
class Index:
    """Where N examples lie."""

    containers: tuple[str, ...]  # shards, or folders of classes, as text
    spans: np.ndarray  # int64 [3, N]: offset, bytes, label
    container: np.ndarray  # int32 [N]: the number of the container of each example
    names: np.ndarray  # uint8: the name of each example, ended by a zero
    ends: np.ndarray  # int64 [N]: where each name ends

    @classmethod
    def join(cls, containers: Sequence[str], tables: Sequence[Tables]) -> "Index":
        """Join the tables of containers, whose labels are class numbers."""
        names = np.concatenate([table["names"] for table in tables])
        counts = [table["spans"].shape[1] for table in tables]
        return cls(
            containers=tuple(containers),
            spans=np.concatenate([table["spans"] for table in tables], axis=1),
            container=np.repeat(np.arange(len(containers), dtype=np.int32), counts),
            names=names,
            ends=np.flatnonzero(names == 0),
        )

    @property
    def count(self) -> int:
        return self.spans.shape[1]

    def name(self, example: int) -> str:
        start = self.ends[example - 1] + 1 if example else 0
        return bytes(self.names[start : self.ends[example]]).decode(errors="surrogateescape")
