"""The whole benchmark: calibrate, prove that the checks can say no, then measure size after size, and fit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ringtrain.bench import checks, rows
from ringtrain.bench.bound import bound_s
from ringtrain.bench.calibration import Calibration, calibrate
from ringtrain.bench.fits import fits
from ringtrain.bench.header import make_header, name_of
from ringtrain.bench.numbers import TYPES
from ringtrain.bench.pairs import measure_pairs
from ringtrain.bench.sizes import whole_elements
from ringtrain.bench.timing import START, Protocol, Samples, measure
from ringtrain.bench.trials import Job, Refusal, Rival, Trial, prepare
from ringtrain.collectives.execute import SEGMENT_BYTES
from ringtrain.exchange.guard import Guard
from ringtrain.exchange.reductions import ALGORITHMS, NATIVE
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is asked for. sizes are bytes; the rest are names of the catalogues, and how to measure.

    checked:       whether results are checked, and compared bit by bit
    out_of_place:  measure that too, after in place
    pairs:         map every pair of ranks first
    segment_bytes: where a schedule's moves are cut
    rivals:        all-reduces of others (:func:`trials.prepare`), by the names that ``algorithms`` has them under
    guard:         watches the all-reduces; None for none
    """

    sizes: Sequence[int]
    algorithms: Sequence[str] = ALGORITHMS
    dtypes: Sequence[str] = ("float32",)
    ops: Sequence[str] = ("sum",)
    protocol: Protocol = field(default_factory=Protocol)
    checked: bool = True
    out_of_place: bool = False
    pairs: bool = False
    segment_bytes: int = SEGMENT_BYTES
    rivals: Mapping[str, Rival] = field(default_factory=dict)
    guard: Guard | None = None


@dataclass(slots=True)
class Result:
    header: dict
    rows: list[dict] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told how a sweep goes: ``begun(header)``, ``measured(rows)`` of one size, ``progress(what, done, of)``."""

    begun: Callable[[dict], None] = lambda header: None
    measured: Callable[[list[dict]], None] = lambda rows: None
    progress: Callable[[str, int, int], None] = lambda what, done, of: None


def sweep(transport: Transport, asked: Sweep, watcher: Watcher | None = None) -> Result:
    """Collective; the same on all ranks. Raises RingtrainError where a check does not notice a flipped byte."""
    watcher = watcher or Watcher()
    result = Result(make_header(transport, START))
    tag = 2 * len(asked.algorithms)  # behind those of the trials
    watcher.progress("calibrating links", 0, 1)
    calibration = calibrate(transport, tag, np.add, np.dtype(np.float32))
    result.header |= {"protocol": _protocol(asked), "calibration": calibration.as_dict(), "self_test": None}
    result.header["pairs"] = _map(transport, asked, tag, watcher)
    watcher.begun(result.header)
    bench = _Bench(transport, asked, calibration, result.header["crowded"], watcher)
    for job in bench.jobs():
        fresh = bench.measure(job)
        watcher.measured(fresh)
        result.rows += fresh
    result.header["self_test"] = bench.tested
    result.header["fits"] = fits(result.rows, calibration, transport.size)
    return result


def _map(transport: Transport, asked: Sweep, tag: int, watcher: Watcher) -> list[dict] | None:
    if not asked.pairs:
        return None
    return measure_pairs(transport, tag, lambda done, total: watcher.progress("mapping pairs", done, total))


def _protocol(asked: Sweep) -> dict:
    protocol = asked.protocol
    return {name: getattr(protocol, name) for name in protocol.__slots__} | {"segment_bytes": asked.segment_bytes}


class _Bench:
    """The memory that every size is a part of, and what has been proved so far.

    tested: the (algorithm, type, operation) whose checks have noticed a flipped byte
    """

    def __init__(
        self, transport: Transport, asked: Sweep, calibration: Calibration, crowded: str | None, watcher: Watcher
    ):
        self._transport, self._asked, self._calibration = transport, asked, calibration
        self._crowded, self._watcher = crowded, watcher
        self.tested: list[list[str]] = []
        room = max(asked.sizes) + max(numbers.itemsize for numbers in TYPES.values())
        self._target = transport.allocate(room, np.uint8)
        self._source = transport.allocate(room, np.uint8) if asked.out_of_place else None

    def jobs(self) -> Iterator[Job]:
        """Sizes innermost, so that a table reads like a curve."""
        placements = (None, self._source) if self._asked.out_of_place else (None,)
        for dtype, op, source in product(self._asked.dtypes, self._asked.ops, placements):
            numbers = TYPES[dtype]
            for nbytes in whole_elements(self._asked.sizes, numbers.itemsize):
                spans = [span[:nbytes].view(numbers.storage) for span in (self._target, source) if span is not None]
                yield Job(self._transport, numbers, op, *spans, guard=self._asked.guard)

    def measure(self, job: Job) -> list[dict]:
        """The rows of all algorithms on one job, in the order asked for."""
        trials, refusals = self._prepare(job)
        verdicts = {trial.algorithm: self._judge(job, trial, tag) for tag, trial in enumerate(trials)}
        what = f"{job.nbytes:,} bytes of {job.numbers.name}"
        samples = measure(job, trials, self._asked.protocol, lambda done, of: self._watcher.progress(what, done, of))
        wire = self._transport.gather_json({trial.algorithm: trial.bytes_sent for trial in trials})
        made = {
            trial.algorithm: self._row(job, samples, verdicts, _busiest(wire, trial), trial.algorithm)
            for trial in trials
        }
        return [refusals[name] if name in refusals else made[name] for name in self._asked.algorithms]

    def _prepare(self, job: Job) -> tuple[list[Trial], dict[str, dict]]:
        trials, refusals = [], {}
        for tag, name in enumerate(self._asked.algorithms):
            try:
                trials.append(prepare(job, name, tag, self._asked.segment_bytes, self._asked.rivals))
            except Refusal as reason:
                refusals[name] = rows.refused(self._named(job, name), str(reason))
        return trials, refusals

    def _judge(self, job: Job, trial: Trial, tag: int) -> checks.Verdict | None:
        if not self._asked.checked:
            return None
        self._watcher.progress(f"checking {trial.algorithm} on {job.nbytes:,} bytes of {job.numbers.name}", 0, 1)
        proved = [trial.algorithm, job.numbers.name, job.op]
        if proved not in self.tested and checks.self_test(job, trial, self._asked.protocol.seed):
            self.tested.append(proved)
        otherwise = None
        if trial.bytes_sent is not None:
            otherwise = prepare(job, trial.algorithm, len(self._asked.algorithms) + tag, self._other_segment(job))
        return checks.judge(job, trial, otherwise, self._asked.protocol.seed)

    def _other_segment(self, job: Job) -> int:
        """Cut elsewhere: in about three pieces a rank, where that is another size."""
        other = max(job.nbytes // (3 * self._transport.size), job.numbers.itemsize)
        return other if other < self._asked.segment_bytes else self._asked.segment_bytes // 2

    def _named(self, job: Job, algorithm: str) -> dict:
        return rows.identity(job, algorithm, name_of(self._transport))

    def _row(self, job: Job, samples: dict[str, Samples], verdicts: dict, wire: int | None, algorithm: str) -> dict:
        own, protocol = samples[algorithm], self._asked.protocol
        bound = bound_s(self._calibration, self._transport.size, self._transport.nodes, job.nbytes)
        row = rows.measured(self._named(job, algorithm), own, wire, bound, self._crowded)
        row = rows.with_late(row, own, protocol)
        row = rows.with_speedup(row, samples.get(NATIVE), own, protocol.seed)
        return rows.with_verdict(row, verdicts[algorithm])


def _busiest(wire: list[dict], trial: Trial) -> int | None:
    """What the rank sends that sends most."""
    sent = [own[trial.algorithm] for own in wire]
    return None if None in sent else max(sent)
