"""Checks of an all-reduce's result: every element, with two kinds of input, on every rank.

*exact*    integers whose every partial sum is exact in any order, so that the result must be equal
*random*   normal numbers, against a sum in the widest type: |error| <= depth · u · sum of |x|, with depth the p - 1
           additions of an element at most in any order, and u the type's roundoff; with a wire that rounds also p · u
           of the wire, since a contribution is in at most p - 1 messages, and rounded by an owner

Inputs repeat with a period of a large prime number of elements, different on every rank. Expected values are then made
once for a period, and a chunk in the place of another is still seen, since no chunk's length is a multiple of the
period. Integer types are exact in both kinds, and so are max and min.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from ringtrain.allreduce.dtypes import MEAN, TYPES, UFUNCS, NumberType
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.bench.measure.trials import ALL_REDUCE, MeasuredCollective, PreparedTrial

PERIOD = 65521  # elements; prime
BLOCK = 16 * PERIOD
KINDS = ("exact", "random")
ALIKE = (ALL_REDUCE, "broadcast", "all-gather")  # all ranks get the same


@dataclass(frozen=True, slots=True)
class Pattern:
    """One period of every rank's input and of the result, made once for all sizes and read-only."""

    input: np.ndarray  # this rank's, as stored
    expected: np.ndarray  # of the result, in a type that holds it
    allowed: np.ndarray  # largest error of each element


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a collective."""

    wrong: int  # number of wrong elements, over all ranks and both kinds of input
    same_on_ranks: bool | None  # whether all ranks hold the same bits; None where they get different parts
    same_over_repeats: bool  # whether a repetition gives the same bits


@lru_cache(maxsize=32)
def make_pattern(kind: str, numbers: NumberType, op: str, rank: int, size: int, seed: int, wire: str = NONE) -> Pattern:
    """Return the pattern of one kind of input."""
    carried = numbers if wire == NONE else TYPES[wire]
    inputs = [_input(kind, numbers, each, size, seed, min(numbers.whole, carried.whole)) for each in range(size)]
    wide = [_widened(numbers, stored) for stored in inputs]
    expected = reduce(UFUNCS[op], wide)
    if op == MEAN:
        expected = expected / size
    if kind == "exact":  # the division of a mean rounds once, and so does this
        expected = _widened(numbers, numbers.encode(expected))
    return Pattern(inputs[rank], expected, _allowed(kind, numbers, op, wide, None if wire == NONE else carried))


@lru_cache(maxsize=32)
def make_copy(kind: str, numbers: NumberType, rank: int, size: int, seed: int) -> Pattern:
    """Return the pattern of a rank's input, as it must arrive."""
    stored = _input(kind, numbers, rank, size, seed, numbers.whole)
    return Pattern(stored, _widened(numbers, stored), np.zeros(PERIOD))


def _widened(numbers: NumberType, stored) -> np.ndarray:
    """Return the numbers in a type whose rounding does not matter beside the rounding of ``numbers``."""
    floating = np.longdouble if numbers.itemsize == 8 else np.float64
    return numbers.decode(stored).astype(np.int64 if numbers.integral else floating)


def _input(kind: str, numbers: NumberType, rank: int, size: int, seed: int, whole: int) -> np.ndarray:
    """Return one period of a rank's input. ``whole``: up to here every integer is exact in memory and in messages."""
    rng = np.random.default_rng([seed, rank, KINDS.index(kind)])
    if kind == "random" and not numbers.integral:
        return numbers.encode(rng.standard_normal(PERIOD))
    most = min(whole, 1 << 20) // size
    if most == 0:  # more ranks than whole numbers: the sum of the first ones is exact still
        most = int(rank < whole)
    return numbers.encode(rng.integers(-most, most + 1, PERIOD))


def _allowed(kind: str, numbers: NumberType, op: str, wide: list, wire: NumberType | None) -> np.ndarray:
    size = len(wide)
    if kind == "exact" or numbers.integral or op in ("max", "min"):
        return np.zeros(PERIOD)
    total = sum(np.abs(x) for x in wide)
    of_sum = (size - 1) * numbers.roundoff * total
    if wire is not None:
        of_sum += size * (wire.roundoff * total + wire.least / 2)
    if op == MEAN:  # one rounding more, and everything divided
        return (of_sum + numbers.roundoff * total) / size
    return of_sum


def slices_with_pattern(span, pattern: np.ndarray) -> Iterator[tuple]:
    """Yield slices of ``span`` with the repeated pattern, small enough to stay in the cache."""
    repeated = np.tile(pattern, BLOCK // PERIOD) if span.size > PERIOD else pattern
    for start in range(0, span.size, BLOCK):
        part = span[start : start + BLOCK]
        yield part, repeated[: part.size]


def fill(span, pattern: Pattern) -> None:
    for part, values in slices_with_pattern(span, pattern.input):
        part[...] = values


def count_wrong(numbers: NumberType, span, pattern: Pattern) -> int:
    """Return the number of elements of a result that differ more than allowed. A NaN is wrong."""
    pairs = zip(slices_with_pattern(span, pattern.expected), slices_with_pattern(span, pattern.allowed), strict=True)
    return sum(_wrong(numbers, part, expected, allowed) for (part, expected), (_, allowed) in pairs)


def _wrong(numbers: NumberType, part, expected, allowed) -> int:
    if numbers.integral:
        return int(np.count_nonzero(part != expected))
    with np.errstate(invalid="ignore", over="ignore"):  # a wrong result may be a NaN or huge
        error = np.abs(numbers.decode(part) - expected)
    return int(np.count_nonzero(~(error <= allowed)))


def judge(trial: PreparedTrial, seed: int) -> Verdict:
    """Run the trial on both kinds of input, and once more. Collective; the same everywhere."""
    exact, random = KINDS
    wrong, digests = _run_on(trial, exact, seed), []
    for _ in range(2):
        wrong += _run_on(trial, random, seed)
        digests.append(hashlib.sha256(trial.job.buffers.read(trial.job.target).view(np.uint8).data).hexdigest())
    ranks = trial.job.transport.gather_json([wrong, *digests])
    return Verdict(
        wrong=sum(rank_wrong for rank_wrong, *_ in ranks),
        same_on_ranks=len({first for _, first, _ in ranks}) == 1 if trial.job.collective in ALIKE else None,
        same_over_repeats=all(first == again for _, first, again in ranks),
    )


def _pattern(trial: PreparedTrial, kind: str, seed: int) -> Pattern:
    job = trial.job
    return make_pattern(kind, job.numbers, job.op, job.transport.rank, job.transport.size, seed, trial.wire)


def _run_on(trial: PreparedTrial, kind: str, seed: int) -> int:
    """Return the number of wrong elements after a run, part by part."""
    job = trial.job
    host = job.buffers.host_of(job.contribution)
    fill(host, _pattern(trial, kind, seed))
    job.buffers.load(host, job.contribution)
    trial.run()
    result, wrong = job.buffers.read(job.target), 0
    for start, stop, source, first in _parts(job):
        if source is None:
            pattern = _pattern(trial, kind, seed)
        else:
            pattern = make_copy(kind, job.numbers, source, job.ranks, seed)
        shifted = [np.roll(each, -(first % PERIOD)) for each in (pattern.expected, pattern.allowed)]
        wrong += count_wrong(job.numbers, result[start:stop], Pattern(pattern.input, *shifted))
    return wrong


def _parts(job: MeasuredCollective) -> list[tuple[int, int, int | None, int]]:
    """Return what a collective's result consists of: (start, stop, the rank whose input it is, or None for the
    reduction, its first element there)."""
    rank, size = job.transport.rank, job.target.size
    row = size // job.ranks
    every = range(job.ranks)
    parts: dict[str, list[tuple[int, int, int | None, int]]] = {
        ALL_REDUCE: [(0, size, None, 0)],
        "reduce": [(0, size, None, 0)] if rank == job.root else [],
        "reduce-scatter": [(0, size, None, rank * size)],
        "broadcast": [(0, size, job.root, 0)],
        "all-gather": [(r * row, (r + 1) * row, r, 0) for r in every],
        "all-to-all": [(r * row, (r + 1) * row, r, rank * row) for r in every],
    }
    return parts[job.collective]
