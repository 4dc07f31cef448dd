"""From a schedule to what one rank does with one buffer: pieces, and what each piece waits for.

A move is cut into segments, and each segment is a piece. Steps are then forgotten: what they meant is kept as
waits, so that a piece goes as soon as its own elements are free. In the ring, the second segment of a chunk
is still arriving while the first one, already added, is sent on.

A piece *starts* (its message is posted) and is *done* (sent; arrived; arrived and added). It waits

* to start, for the piece before it on its channel (same peer, same direction) to have started: messages of a
  pair match first-in-first-out;
* to send, for what earlier steps wrote into its elements to be done;
* to overwrite, for what earlier steps wrote into, and read from, its elements to be done;
* to arrive for an addition, only for its place in staging, which a piece of the same channel held before; the
  addition itself waits as an overwriting does.

A move to oneself is one piece, which is no message: it waits for the elements that it reads and for those that
it writes, and is done when it starts.

Where messages travel packed (:mod:`ringtrain.collectives.execution.reduction`), all of them lie in staging: a piece is
packed there when it starts to be sent, and unpacked or added from there. So it also waits for its place to be sent or
to arrive; and an overwriting arrives at once, and itself waits as an addition does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ringtrain.collectives.schedule import Move, Schedule, Step, bounds

SEND, TAKE, ADD = "send", "take", "add"
# Within the rank: add elements of its own to others; overwrite others by them; do to them what the wire does.
FOLD, COPY, ROUND = "fold", "copy", "round"
LOCAL = (FOLD, COPY, ROUND)
STAGES = 4  # places in staging for each peer whose contributions are added, or for each channel of packed messages


@dataclass(frozen=True, slots=True)
class Task:
    """Elements ``start:stop`` of the buffer; or of further lanes and of scratch, counted on from the buffer's end.
    ``stage`` is its place in staging, counted in segments; ``source`` is where the elements lie that a piece within
    the rank reads. Both are -1 where they mean nothing."""

    step: int
    kind: str
    peer: int
    start: int
    stop: int
    stage: int = -1
    source: int = -1

    @property
    def read(self) -> tuple[int, int] | None:
        """The elements that it reads."""
        if self.kind == SEND:
            return self.start, self.stop
        return (self.source, self.source + self.stop - self.start) if self.kind in LOCAL else None

    @property
    def lands(self) -> bool:
        """Whether it arrives in staging, before it is added or unpacked."""
        return self.kind in (TAKE, ADD) and self.stage >= 0

    @property
    def written(self) -> tuple[int, int] | None:
        """The elements that it writes."""
        return None if self.kind == SEND else (self.start, self.stop)


@dataclass(slots=True)
class TaskGraph:
    """The pieces of one rank, and by piece: how many things it waits for before it starts, and, of one that lands in
    staging, before it is added or unpacked; and whom it lets go when it has started, and when it is done."""

    pieces: list[Task]
    scratch: int  # elements
    stages: int  # segments in staging
    segment: int  # elements of the longest piece that lies there
    start_waits: list[int] = field(init=False)
    add_waits: list[int] = field(init=False)
    started: list[list[int]] = field(init=False)
    done_start: list[list[int]] = field(init=False)
    done_add: list[list[int]] = field(init=False)

    def __post_init__(self):
        count = len(self.pieces)
        self.start_waits, self.add_waits = [0] * count, [0] * count
        self.started, self.done_start, self.done_add = ([[] for _ in range(count)] for _ in range(3))


class BufferLayout:
    """Where chunks lie: those of the buffer and of the other ``lanes`` first, then the scratch chunks that these steps
    use, one after the other."""

    def __init__(
        self,
        steps: tuple[Step, ...],
        chunks: int,
        count: int,
        edges: Sequence[int] | None = None,
        lanes: int = 1,
    ):
        edges = edges or bounds(count, chunks)
        self.spans = {
            lane * chunks + i: (lane * count + edges[i], lane * count + edges[i + 1])
            for lane in range(lanes)
            for i in range(chunks)
        }
        self.stop = lanes * count
        moves = [move for step in steps for move in (*step.sends, *step.recvs)]
        for index in sorted({i for move in moves for i in range(move.start, move.stop) if i >= lanes * chunks}):
            room = edges[index % chunks + 1] - edges[index % chunks]
            self.spans[index] = (self.stop, self.stop + room)
            self.stop += room

    def span(self, move: Move) -> tuple[int, int]:
        return self.spans[move.start][0], self.spans[move.stop - 1][1]


def make_plan(
    schedule: Schedule,
    rank: int,
    count: int,
    segment: int,
    packed: bool = False,
    edges: Sequence[int] | None = None,
) -> TaskGraph:
    """The plan of ``rank`` for a buffer of ``count`` elements, in segments of at most ``segment``
    elements. ``packed``: whether messages are. ``edges``: where chunks begin, and the end, unless they are even."""
    steps = schedule.steps(rank)
    lanes = schedule.inputs_of(rank)
    layout = BufferLayout(steps, schedule.chunks, count, edges, lanes)
    stages = _Stages(packed)
    pieces = [piece for k, step in enumerate(steps) for piece in _pieces(k, rank, step, layout, segment, stages)]
    longest = max((p.stop - p.start for p in pieces if p.stage >= 0), default=0)
    plan = TaskGraph(pieces, layout.stop - lanes * count, stages.count, longest)
    _keep_channels(plan)
    _keep_stages(plan)
    _keep_elements(plan)
    return plan


class _Stages:
    """Deals places in staging: each channel has up to STAGES of its own, used in turn, so that peers never wait
    for one another's."""

    def __init__(self, packed: bool):
        self.count = 0
        self._kinds = (SEND, TAKE, ADD, ROUND) if packed else (ADD,)
        self._places: dict[tuple[bool, int], list[int]] = {}
        self._dealt: dict[tuple[bool, int], int] = {}

    def deal(self, kind: str, peer: int) -> int:
        """The next place of the piece's channel; -1 for a piece that needs none."""
        if kind not in self._kinds:
            return -1
        channel = (kind == SEND, peer)
        places, dealt = self._places.setdefault(channel, []), self._dealt.get(channel, 0)
        if len(places) < STAGES:
            places.append(self.count)
            self.count += 1
        self._dealt[channel] = dealt + 1
        return places[dealt % STAGES]


def _pieces(number: int, rank: int, step: Step, layout: BufferLayout, segment: int, stages: _Stages) -> Iterator[Task]:
    recvs = [(ADD if move.add else TAKE, move) for move in step.recvs]
    sends = [(SEND, move) for move in step.sends]
    for kind, move in [*recvs, *sends]:
        if move.peer != rank:
            for start, stop in _cut(*layout.span(move), segment):
                yield Task(number, kind, move.peer, start, stop, stages.deal(kind, move.peer))
    yield from _local_pieces(number, rank, step, layout, segment, stages)


def _local_pieces(
    number: int, rank: int, step: Step, layout: BufferLayout, segment: int, stages: _Stages
) -> Iterator[Task]:
    """The step's moves within the rank, whose two ends stand in the same order in sends and receives."""
    sends, recvs = ([move for move in moves if move.peer == rank] for moves in (step.sends, step.recvs))
    for send, recv in zip(sends, recvs, strict=True):
        first, _ = layout.span(recv)
        source, _ = layout.span(send)
        kind = FOLD if recv.add else ROUND if source == first else COPY
        for start, stop in _cut(*layout.span(recv), segment):
            yield Task(number, kind, rank, start, stop, stages.deal(kind, rank), source + start - first)


def _cut(start: int, stop: int, segment: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, segment):
        yield at, min(at + segment, stop)


def _keep_channels(plan: TaskGraph) -> None:
    last: dict[tuple[bool, int], int] = {}
    for i, piece in enumerate(plan.pieces):
        if piece.kind in LOCAL:
            continue
        channel = (piece.kind == SEND, piece.peer)
        if channel in last:
            plan.started[last[channel]].append(i)
            plan.start_waits[i] += 1
        last[channel] = i


def _keep_stages(plan: TaskGraph) -> None:
    last: dict[int, int] = {}
    for i, piece in enumerate(plan.pieces):
        if piece.stage >= 0:
            if piece.stage in last:
                plan.done_start[last[piece.stage]].append(i)
                plan.start_waits[i] += 1
            last[piece.stage] = i


def _keep_elements(plan: TaskGraph) -> None:
    """Order the pieces that touch the same elements in different steps, where one of them writes."""
    cells = _Cells(plan.pieces)
    for numbers in _by_step(plan.pieces):
        for i in numbers:
            _wait(plan, i, cells.rivals(plan.pieces[i]))
        for i in numbers:
            cells.touch(i, plan.pieces[i])


def _by_step(pieces: list[Task]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for i, piece in enumerate(pieces):
        groups.setdefault(piece.step, []).append(i)
    return list(groups.values())


def _wait(plan: TaskGraph, i: int, rivals: set[int]) -> None:
    lands = plan.pieces[i].lands
    for rival in rivals:
        (plan.done_add if lands else plan.done_start)[rival].append(i)
    (plan.add_waits if lands else plan.start_waits)[i] += len(rivals)


class _Cells:
    """The elements, in the smallest ranges that no piece divides: who wrote each last, and who has read it
    since."""

    def __init__(self, pieces: list[Task]):
        edges = sorted({edge for piece in pieces for span in (piece.read, piece.written) if span for edge in span})
        self._at = {edge: i for i, edge in enumerate(edges)}
        self._writers: list[set[int]] = [set() for _ in edges]
        self._readers: list[set[int]] = [set() for _ in edges]

    def _range(self, span: tuple[int, int] | None) -> range:
        return range(self._at[span[0]], self._at[span[1]]) if span else range(0)

    def rivals(self, piece: Task) -> set[int]:
        found: set[int] = set()
        for cell in self._range(piece.read):
            found |= self._writers[cell]
        for cell in self._range(piece.written):
            found |= self._writers[cell] | self._readers[cell]
        return found

    def touch(self, i: int, piece: Task) -> None:
        for cell in self._range(piece.read):
            self._readers[cell].add(i)
        for cell in self._range(piece.written):
            self._writers[cell], self._readers[cell] = {i}, set()
