"""Symbolic sums for proofs: expressions that record the order of additions instead of numbers.

A leaf is a contribution; a node is a sum of two expressions. Equal expressions, up to the order of the two operands,
are one number, so that comparing trees is comparing integers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringtrain.errors import ScheduleError

LONGEST = 200  # characters of an expression in an error


class SymbolicSums:
    """Expressions as integers. The first ``count`` are the leaves."""

    def __init__(self, count: int):
        self.count = count
        self.leaves: list[Counter] = [Counter([leaf]) for leaf in range(count)]
        self._known: dict[tuple[int, int], int] = {}
        self._rounded: dict[int, int] = {}

    def round(self, a: int) -> int:
        """Return Q(a), the expression rounded by the wire."""
        if a not in self._rounded:
            result = self._rounded[a] = len(self.leaves)
            self.leaves.append(self.leaves[a])
            self._rounded[result] = result
        return self._rounded[a]

    def add(self, a: int, b: int) -> int:
        key = (a, b) if a < b else (b, a)
        if key not in self._known:
            self._known[key] = len(self.leaves)
            self.leaves.append(self.leaves[a] + self.leaves[b])
        return self._known[key]

    def say(self, value: int) -> str:
        """Return the expression as text, "(0 + 1) + 2", from the lowest leaf on; a long one is cut."""
        text = self._say(value, {total: parts for parts, total in self._known.items()})
        text = text[1:-1] if text.startswith("(") else text
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"

    def _say(self, value: int, parts: dict[int, tuple[int, int]]) -> str:
        if value not in parts:
            return str(min(self.leaves[value]))
        both = sorted(parts[value], key=lambda part: min(self.leaves[part]))
        return f"({' + '.join(self._say(part, parts) for part in both)})"


@dataclass(frozen=True, slots=True)
class Contributions:
    """The inputs of the ranks, and the wanted sum."""

    sums: SymbolicSums  # the expressions
    # ``inputs[rank][input]``: the expression in the rank's buffer, and in its further inputs
    inputs: Sequence[Sequence[int]]
    name: Callable[[int], str]  # ``name(leaf)``, in words
    # the wanted expression of every sum; None: any sum with each leaf once, the same on all ranks
    total: int | None = None

    def values(self, rank: int, chunks: int) -> dict[int, int]:
        """Return the expression in each chunk of the rank's inputs."""
        return {number * chunks + i: value for number, value in enumerate(self.inputs[rank]) for i in range(chunks)}

    def check(self, where: str, value: int, first: int, first_rank: int, done: str = "added") -> None:
        """Raise ScheduleError if a sum has not each leaf once, is not that of the first rank, or not the wanted one.

        done: what makes two sums differ, in words
        """
        counts = self.sums.leaves[value]
        for leaf in (leaf for leaf in range(self.sums.count) if counts[leaf] != 1):
            raise ScheduleError(f"{where} ends with {self.name(leaf)} {counts[leaf]} times")
        if value != first:
            raise ScheduleError(
                f"{where} is {done} in another order than on rank {first_rank}: replicas would round differently"
            )
        if self.total not in (None, value):
            raise ScheduleError(f"{where} is added as {self.sums.say(value)}; wanted {self.sums.say(self.total)}")


def contributions(brings: Sequence[int]) -> Contributions:
    """Return the contributions of ranks with these numbers of input arrays: every array is a leaf, the buffers
    first."""
    names = [f"rank {rank}'s contribution" for rank in range(len(brings))]
    inputs = [[rank] for rank in range(len(brings))]
    for rank, count in enumerate(brings):
        for number in range(1, count):
            inputs[rank].append(len(names))
            names.append(f"rank {rank}'s contribution in input {number}")
    return Contributions(SymbolicSums(len(names)), inputs, names.__getitem__)
