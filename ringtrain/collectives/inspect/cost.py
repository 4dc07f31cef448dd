"""The cost of a schedule: its messages simulated on a model of the machine.

The model is alpha-beta-gamma, with a rank's own cost for each message (the o of LogGP). A message of n bytes keeps its
sender, its receiver and, between nodes, both nodes' network interfaces for ``o + n · beta``; it has arrived
``alpha`` later, and an addition of it then takes ``n · gamma``. A rank sends one message at a time,
and receives one at a time, and does both at once; so does an interface, which the ranks of a node share.

A rank continues with its next step when this one is done; execution overlaps the segments of one with the next
step's. Messages are served first come, first served, messages of one step in the order in which the step names them.

Source: Hockney, Parallel Computing 1994 (alpha, beta); Alexandrov et al., LogGP, SPAA 1995 (o, and the gap that
messages of one port keep).
"""

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush

from ringtrain.collectives.matching import MatchedMessage, all_steps, messages
from ringtrain.collectives.schedule import ALL_REDUCE, Schedule
from ringtrain.collectives.topology import Topology
from ringtrain.errors import ScheduleError, UsageError

MOST_RANKS = 512  # every message of every rank is looked at


@dataclass(frozen=True, slots=True)
class Fabric:
    """The speed of a machine, in seconds, and in seconds for each byte of a message in one direction.

    alpha, beta:             between nodes
    local_alpha, local_beta: within a node
    gamma:                   to add a byte to another, or to copy it within a rank
    o:                       of a message, for each of its two ranks
    """

    alpha_s: float = 2e-6
    beta_s: float = 8e-11
    local_alpha_s: float = 5e-7
    local_beta_s: float = 1e-10
    gamma_s: float = 1e-10
    o_s: float = 5e-7

    def __post_init__(self):
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} is {getattr(self, name)}: wanted a number of seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Cost:
    """The simulated cost of a schedule."""

    seconds: float  # time until the last rank is done
    sent: tuple[float, ...]  # bytes that each rank sends to others
    interface: tuple[float, ...]  # bytes that each node's interface sends to others


def schedule_cost(schedule: Schedule, topology: Topology, nbytes: float, fabric: Fabric, wire: float = 1.0) -> Cost:
    """Return the cost of ``nbytes`` in each rank's buffer, if messages have ``wire`` of the bytes of their elements:
    0.5 in 16 bits. Raises ScheduleError if the schedule deadlocks."""
    return _Play(schedule, topology, nbytes / schedule.chunks, fabric, wire).run()


def least_s(schedule: Schedule, topology: Topology, nbytes: float, fabric: Fabric) -> float:
    """Return a lower bound in seconds for all schedules of this goal over messages: (m - 1)/m of the buffer must pass
    the interface of one of m nodes, or leave one of m ranks of a single node; for an all-reduce, twice that."""
    nodes = len(topology.nodes)
    count, beta = (nodes, fabric.beta_s) if nodes > 1 else (topology.size, fabric.local_beta_s)
    return (2 if schedule.goal == ALL_REDUCE else 1) * (count - 1) / count * nbytes * beta


class _Play:
    def __init__(self, schedule: Schedule, topology: Topology, chunk_bytes: float, fabric: Fabric, wire: float):
        self.schedule, self.fabric, self.chunk_bytes, self.wire = schedule, fabric, chunk_bytes, wire
        self.steps = all_steps(schedule)
        self.met = messages(schedule, self.steps)
        self.home = topology.node_of()
        self.free: dict[tuple[str, int], float] = defaultdict(float)  # port → when it is free again
        self.sent, self.interface = [0.0] * schedule.size, [0.0] * len(topology.nodes)
        self.touching = defaultdict(list)  # (rank, step) → messages with an end there
        for number, message in enumerate(self.met):
            for end in dict.fromkeys(message.ends):  # of a move within a rank both ends are one
                self.touching[end].append(number)
        self.begun: dict[tuple[int, int], float] = {}
        self.left = {end: len(numbers) for end, numbers in self.touching.items()}
        self.until: dict[tuple[int, int], float] = defaultdict(float)  # (rank, step) → end of its last finished message
        self.ready: list = []

    def run(self) -> Cost:
        for rank in range(self.schedule.size):
            self._begin(rank, 0, 0.0)
        while self.ready:
            at, _, _, number = heappop(self.ready)
            message = self.met[number]
            for end, done in self._carry(message, at).items():
                self._done(end, done)
        if any(self.left.values()):
            raise ScheduleError(f"{self.schedule!r} deadlocks: {sum(self.left.values())} ends of messages are left")
        seconds = max(
            (self.until[rank, len(rank_steps) - 1] for rank, rank_steps in enumerate(self.steps) if rank_steps),
            default=0.0,
        )
        return Cost(seconds, tuple(self.sent), tuple(self.interface))

    def _begin(self, rank: int, step: int, at: float) -> None:
        """Begin this step, and the steps after it as long as they are empty."""
        while step < len(self.steps[rank]):
            self.begun[rank, step] = self.until[rank, step] = at
            if self.touching[rank, step]:
                break
            step += 1
        for number in self.touching[rank, step]:
            message = self.met[number]
            if all(end in self.begun for end in message.ends):
                order = self.steps[message.source][message.sent].sends.index(message.send)
                at = max(self.begun[end] for end in message.ends)
                heappush(self.ready, (at, order, message.source, number))

    def _done(self, end: tuple[int, int], at: float) -> None:
        self.until[end] = max(self.until[end], at)
        self.left[end] -= 1
        if not self.left[end]:
            self._begin(end[0], end[1] + 1, self.until[end])

    def _carry(self, message: MatchedMessage, at: float) -> dict[tuple[int, int], float]:
        """Return the time at which each end of the message is done with it, if it may begin at ``at``."""
        fabric, nbytes = self.fabric, message.chunks * self.chunk_bytes
        source, target = message.ends
        if source == target:
            return {source: self._hold([("adds", message.target)], at, nbytes * fabric.gamma_s)}
        source_node, target_node = self.home[message.source], self.home[message.target]
        ports = [("out", message.source), ("in", message.target)]
        alpha, beta = fabric.local_alpha_s, fabric.local_beta_s
        sent_bytes = nbytes * self.wire
        self.sent[message.source] += sent_bytes
        if source_node != target_node:
            ports += [("leaves", source_node), ("enters", target_node)]
            alpha, beta = fabric.alpha_s, fabric.beta_s
            self.interface[source_node] += sent_bytes
        sent = self._hold(ports, at, fabric.o_s + sent_bytes * beta)
        work = nbytes * fabric.gamma_s if message.recv.add else 0.0
        return {source: sent, target: self._hold([("adds", message.target)], sent + alpha, work)}

    def _hold(self, ports: list, at: float, seconds: float) -> float:
        """Occupy these ports as soon as all of them are free. Returns the time at which they are free again."""
        end = max([at, *(self.free[port] for port in ports)]) + seconds
        self.free.update(dict.fromkeys(ports, end))
        return end
