"""The task graph of a schedule on one rank and one buffer: tasks, and the dependencies between them.

A move is cut into segments, and each segment is a task. Steps are then forgotten: their meaning is kept as
dependencies, so that a task runs as soon as its own elements are free. In the ring, the second segment of a chunk is
still arriving while the first one, already added, is sent on.

A task *starts* (its message is posted) and is *done* (sent; arrived; arrived and added). It waits

* to start, for the task before it on its channel (same peer, same direction) to have started: messages of a
  pair match first-in-first-out;
* to send, for writes of earlier steps to its elements to be done;
* to overwrite, for writes and reads of earlier steps on its elements to be done;
* to arrive for an addition, only for its slot in staging, which a task of the same channel held before; the
  addition itself waits as an overwriting does.

A move to oneself is one task without a message: it waits for the elements that it reads and for those that it writes,
and is done when it starts.

Packed messages (:mod:`ringtrain.collectives.execution.reduction`) all lie in staging: a task is packed there when its
send starts, and unpacked or added from there. So it also waits for its slot to be sent or to arrive; and an overwriting
arrives at once, and itself waits as an addition does.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ringtrain.collectives.schedule import Move, Schedule, Step, bounds

SEND, TAKE, ADD = "send", "take", "add"
# Within the rank: add its own elements to others; overwrite others by them; round them as the wire does.
FOLD, COPY, ROUND = "fold", "copy", "round"
LOCAL = (FOLD, COPY, ROUND)
SLOTS = 4  # in staging, for each peer whose contributions are added, or for each channel of packed messages


@dataclass(frozen=True, slots=True)
class Task:
    """Elements ``start:stop`` of the buffer, of further inputs or of scratch, counted on from the buffer's end.
    ``slot`` is its slot in staging, counted in segments; ``source`` is the start of the elements that a task within the
    rank reads. Both are -1 if unused."""

    step: int
    kind: str
    peer: int
    start: int
    stop: int
    slot: int = -1
    source: int = -1

    @property
    def read(self) -> tuple[int, int] | None:
        """The elements that it reads."""
        if self.kind == SEND:
            return self.start, self.stop
        return (self.source, self.source + self.stop - self.start) if self.kind in LOCAL else None

    @property
    def written(self) -> tuple[int, int] | None:
        """The elements that it writes."""
        return None if self.kind == SEND else (self.start, self.stop)


@dataclass(slots=True)
class TaskGraph:
    """The tasks of one rank with their dependencies, by task: the number of tasks it waits for before it starts
    (``start_waits``) and, if it arrives in staging, before it is added or unpacked (``add_waits``); and the tasks that
    its start and its end release."""

    tasks: list[Task]
    scratch: int  # elements
    slots: int  # segments in staging
    segment: int  # elements of the longest task that lies there
    start_waits: list[int] = field(init=False)
    add_waits: list[int] = field(init=False)
    started: list[list[int]] = field(init=False)
    done_start: list[list[int]] = field(init=False)
    done_add: list[list[int]] = field(init=False)

    def __post_init__(self):
        count = len(self.tasks)
        self.start_waits, self.add_waits = [0] * count, [0] * count
        self.started, self.done_start, self.done_add = ([list[int]() for _ in range(count)] for _ in range(3))


class BufferLayout:
    """The positions of chunks: first the buffer's and the further ``inputs``' chunks, then the scratch chunks that
    these steps use, one after the other."""

    def __init__(
        self,
        steps: tuple[Step, ...],
        chunks: int,
        count: int,
        chunk_bounds: Sequence[int] | None = None,
        inputs: int = 1,
    ):
        chunk_bounds = chunk_bounds or bounds(count, chunks)
        self.spans = {
            array * chunks + i: (array * count + chunk_bounds[i], array * count + chunk_bounds[i + 1])
            for array in range(inputs)
            for i in range(chunks)
        }
        self.stop = inputs * count
        moves = [move for step in steps for move in (*step.sends, *step.recvs)]
        for index in sorted({i for move in moves for i in range(move.start, move.stop) if i >= inputs * chunks}):
            room = chunk_bounds[index % chunks + 1] - chunk_bounds[index % chunks]
            self.spans[index] = (self.stop, self.stop + room)
            self.stop += room

    def span(self, move: Move) -> tuple[int, int]:
        return self.spans[move.start][0], self.spans[move.stop - 1][1]


def make_task_graph(
    schedule: Schedule,
    rank: int,
    count: int,
    segment: int,
    packed: bool = False,
    chunk_bounds: Sequence[int] | None = None,
) -> TaskGraph:
    """Return the task graph of ``rank`` for a buffer of ``count`` elements, in segments of at most ``segment``
    elements.

    packed:       whether messages are packed
    chunk_bounds: start of each chunk, and the end; None: even chunks
    """
    steps = schedule.steps(rank)
    inputs = schedule.inputs_of(rank)
    layout = BufferLayout(steps, schedule.chunks, count, chunk_bounds, inputs)
    slots = _StagingSlots(packed)
    tasks = [task for k, step in enumerate(steps) for task in _tasks(k, rank, step, layout, segment, slots)]
    longest = max((p.stop - p.start for p in tasks if p.slot >= 0), default=0)
    graph = TaskGraph(tasks, layout.stop - inputs * count, slots.count, longest)
    channels = [(i, (task.kind == SEND, task.peer)) for i, task in enumerate(tasks) if task.kind not in LOCAL]
    _order_users(graph, channels, graph.started)
    _order_users(graph, [(i, task.slot) for i, task in enumerate(tasks) if task.slot >= 0], graph.done_start)
    _order_elements(graph)
    return graph


class _StagingSlots:
    """Assigns slots in staging: each channel has up to SLOTS of its own, used in turn, so that peers never wait for one
    another's."""

    def __init__(self, packed: bool):
        self.count = 0
        self._kinds = (SEND, TAKE, ADD, ROUND) if packed else (ADD,)
        self._slots: dict[tuple[bool, int], list[int]] = {}
        self._dealt: dict[tuple[bool, int], int] = {}

    def deal(self, kind: str, peer: int) -> int:
        """Return the next slot of the task's channel; -1 for a task without one."""
        if kind not in self._kinds:
            return -1
        channel = (kind == SEND, peer)
        slots, dealt = self._slots.setdefault(channel, []), self._dealt.get(channel, 0)
        if len(slots) < SLOTS:
            slots.append(self.count)
            self.count += 1
        self._dealt[channel] = dealt + 1
        return slots[dealt % SLOTS]


def _tasks(
    number: int, rank: int, step: Step, layout: BufferLayout, segment: int, slots: _StagingSlots
) -> Iterator[Task]:
    recvs = [(ADD if move.add else TAKE, move) for move in step.recvs]
    sends = [(SEND, move) for move in step.sends]
    for kind, move in [*recvs, *sends]:
        if move.peer != rank:
            for start, stop in _cut(*layout.span(move), segment):
                yield Task(number, kind, move.peer, start, stop, slots.deal(kind, move.peer))
    yield from _local_tasks(number, rank, step, layout, segment, slots)


def _local_tasks(
    number: int, rank: int, step: Step, layout: BufferLayout, segment: int, slots: _StagingSlots
) -> Iterator[Task]:
    """Yield the step's moves within the rank, whose two ends have the same position in sends and receives."""
    sends, recvs = ([move for move in moves if move.peer == rank] for moves in (step.sends, step.recvs))
    for send, recv in zip(sends, recvs, strict=True):
        first, _ = layout.span(recv)
        source, _ = layout.span(send)
        kind = FOLD if recv.add else ROUND if source == first else COPY
        for start, stop in _cut(*layout.span(recv), segment):
            yield Task(number, kind, rank, start, stop, slots.deal(kind, rank), source + start - first)


def _cut(start: int, stop: int, segment: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, segment):
        yield at, min(at + segment, stop)


def _order_users(graph: TaskGraph, users: Iterable[tuple[int, Hashable]], released: list[list[int]]) -> None:
    """Let each of the tasks start after the one before it that uses the same. ``users``: (task, what it uses)"""
    last: dict[Hashable, int] = {}
    for i, used in users:
        if used in last:
            released[last[used]].append(i)
            graph.start_waits[i] += 1
        last[used] = i


def _order_elements(graph: TaskGraph) -> None:
    """Order the tasks that touch the same elements in different steps, if one of them writes."""
    cells = _Cells(graph.tasks)
    for _, step in groupby(range(len(graph.tasks)), lambda i: graph.tasks[i].step):
        numbers = list(step)
        for i in numbers:
            _wait(graph, i, cells.rivals(graph.tasks[i]))
        for i in numbers:
            cells.touch(i, graph.tasks[i])


def _wait(graph: TaskGraph, i: int, rivals: set[int]) -> None:
    task = graph.tasks[i]
    lands = task.kind in (TAKE, ADD) and task.slot >= 0  # it arrives in staging, before it is added or unpacked
    for rival in rivals:
        (graph.done_add if lands else graph.done_start)[rival].append(i)
    (graph.add_waits if lands else graph.start_waits)[i] += len(rivals)


class _Cells:
    """The elements, in the smallest ranges that no task divides: the last writer of each, and its readers since."""

    def __init__(self, tasks: list[Task]):
        edges = sorted({edge for task in tasks for span in (task.read, task.written) if span for edge in span})
        self._at = {edge: i for i, edge in enumerate(edges)}
        self._writers: list[set[int]] = [set() for _ in edges]
        self._readers: list[set[int]] = [set() for _ in edges]

    def _range(self, span: tuple[int, int] | None) -> range:
        return range(self._at[span[0]], self._at[span[1]]) if span else range(0)

    def rivals(self, task: Task) -> set[int]:
        tasks: set[int] = set()
        for cell in self._range(task.read):
            tasks |= self._writers[cell]
        for cell in self._range(task.written):
            tasks |= self._writers[cell] | self._readers[cell]
        return tasks

    def touch(self, i: int, task: Task) -> None:
        for cell in self._range(task.read):
            self._readers[cell].add(i)
        for cell in self._range(task.written):
            self._writers[cell], self._readers[cell] = {i}, set()
