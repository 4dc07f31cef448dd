"""Segments: work that is recorded once and replayed without its Python code."""

from dataclasses import dataclass

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.cupy_device import CupyGraph

MOST = 1024  # segments: several for each of a few hundred layers


@dataclass(slots=True)
class _Segment:
    """A segment. ``graph``: the recording; None before it, and if it is impossible."""

    graph: CupyGraph | None = None
    returned: object = None
    runs: int = 0
    refusal: str | None = None


class Segments:
    """The segments. The first run of a segment is plain, which compiles and allocates; the second run is recorded, and
    later ones replay the recording. A segment that cannot be recorded always runs plainly. The ``most`` last used ones
    are kept: a recording keeps its arrays."""

    def __init__(self, device, most=MOST):
        self._device, self._most = device, most
        self._segments: dict[object, _Segment] = {}  # the one asked for last is the last

    def __call__(self, key, run):
        if self._device.recording:  # part of a longer segment
            return run()
        segment = self._segments.pop(key, None) or _Segment()
        self._segments[key] = segment
        if len(self._segments) > self._most:
            self._device.stream.synchronize()  # it may be at work
            del self._segments[next(iter(self._segments))]
        segment.runs += 1
        if segment.runs == 2:
            self._record(segment, run)
        if segment.graph is None:
            return run()
        segment.graph.launch(self._device.stream)
        return segment.returned

    def _record(self, segment, run):
        try:
            with self._device.record() as graphs:
                segment.returned = run()
            segment.graph = graphs[0]
        except DeviceError as refused:
            segment.refusal = str(refused)

    def describe(self) -> str:
        """Return the number of recorded segments, and the reasons of the others; empty without segments."""
        refusals = [segment.refusal for segment in self._segments.values() if segment.refusal]
        recorded = sum(segment.graph is not None for segment in self._segments.values())
        words = [f"{recorded} segments recorded"] if recorded else []
        if refusals:
            words.append(f"{len(refusals)} run anew each time ({refusals[0]})")
        return ", ".join(words)
