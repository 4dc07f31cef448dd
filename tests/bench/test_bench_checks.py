"""A check that cannot say no proves nothing: here it says no to everything that goes wrong."""

import numpy as np
import pytest

from ringtrain.allreduce.dtypes import OPS, TYPES
from ringtrain.bench.measure import checks
from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.checks import PERIOD, count_wrong, fill, judge, make_pattern
from ringtrain.bench.measure.trials import MeasuredCollective, PreparedTrial, prepare
from tests.bench.sweeps import spoil
from tests.loopback.world import LoopbackWorld

SIZES = (1, 2, 3, 5)


def result_of(numbers, op, size, kind, count):
    """What a right all-reduce leaves, made by plain arithmetic in the order of ranks."""
    patterns = [make_pattern(kind, numbers, op, rank, size, seed=7) for rank in range(size)]
    total = np.empty(count, numbers.storage)
    fill(total, patterns[0])
    for pattern in patterns[1:]:
        other = np.empty_like(total)
        fill(other, pattern)
        numbers.combine(op)(total, other, total)
    if op == "mean":
        numbers.divide(total, size)
    return total, patterns[-1]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", checks.KINDS)
def test_right_results_pass_and_a_flipped_byte_does_not(name, op, kind):
    numbers = TYPES[name]
    if op == "mean" and numbers.integral:
        return
    for size in SIZES:
        total, pattern = result_of(numbers, op, size, kind, count=1000)
        assert count_wrong(numbers, total, pattern) == 0
        spoil(total, 321)
        assert count_wrong(numbers, total, pattern) == 1


def test_every_element_is_looked_at_and_what_is_wrong_is_seen(monkeypatch):
    numbers, count = TYPES["float32"], 3 * PERIOD + 11
    total, pattern = result_of(numbers, "sum", 2, "exact", count)
    for element in (0, PERIOD - 1, PERIOD, 2 * PERIOD + 5, count - 1):
        spoil(total, element)
    assert count_wrong(numbers, total, pattern) == 5
    total, pattern = result_of(TYPES["float32"], "sum", 2, "exact", 1 << 16)
    total[: 1 << 15] = total[1 << 15 :].copy()
    assert count_wrong(TYPES["float32"], total, pattern) > 30_000
    numbers = TYPES["float32"]
    total, pattern = result_of(numbers, "sum", 3, "random", 1000)
    twice = np.empty_like(total)
    fill(twice, pattern)
    assert count_wrong(numbers, total + twice, pattern) > 990
    total[5] = np.nan
    assert count_wrong(numbers, total, pattern) == 1
    monkeypatch.setattr(checks, "BLOCK", 2 * PERIOD)
    total, pattern = result_of(TYPES["int64"], "max", 3, "random", 5 * PERIOD)
    assert count_wrong(TYPES["int64"], total, pattern) == 0
    spoil(total, 4 * PERIOD)
    assert count_wrong(TYPES["int64"], total, pattern) == 1


def test_partial_sums_of_exact_inputs_are_exact_in_bfloat16_too():
    for size in (2, 7, 128, 300):
        inputs = [checks._input("exact", TYPES["bfloat16"], rank, size, 0, 256) for rank in range(size)]
        largest = sum(np.abs(TYPES["bfloat16"].decode(each)) for each in inputs).max()
        assert 1 <= largest <= 256


def job_of(transport, count=500, name="float32", op="sum"):
    return MeasuredCollective(Buffers(transport), TYPES[name], op, transport.allocate(count, TYPES[name].storage))


def test_judge_finds_a_ring_right_and_its_bits_the_same():
    def body(transport):
        job = job_of(transport)
        return judge(prepare(job, "ring", 0, 64), seed=3)

    verdict, *others = LoopbackWorld(3).run(body)
    assert all(other == verdict for other in others)
    assert (verdict.wrong, verdict.same_on_ranks, verdict.same_over_repeats) == (0, True, True)


def broken(job, spoiled):
    """An all-reduce by the transport, after which ``spoiled(run number)`` elements of this rank are wrong."""
    runs = []

    def run():
        job.transport.native_allreduce(job.target)
        for element in spoiled(len(runs)):
            spoil(job.target, element)
        runs.append(None)

    return PreparedTrial(job, "broken", "messages", run, 0)


@pytest.mark.parametrize(
    ("spoiled", "wrong", "on_ranks", "over_repeats"),
    [
        (lambda rank, run: [], 0, True, True),
        (lambda rank, run: [7] if rank == 1 else [], 3, False, True),
        (lambda rank, run: [7] if run == 2 else [], 2, True, False),
    ],
)
def test_judge_says_what_is_not_the_same(spoiled, wrong, on_ranks, over_repeats):
    def body(transport):
        job = job_of(transport)
        trial = broken(job, lambda run: spoiled(transport.rank, run))
        return judge(trial, seed=0)

    verdict = LoopbackWorld(2).run(body)[0]
    assert verdict.wrong == wrong
    assert (verdict.same_on_ranks, verdict.same_over_repeats) == (on_ranks, over_repeats)
