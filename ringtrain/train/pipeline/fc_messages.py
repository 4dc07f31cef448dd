"""The messages that a rank with fully connected layers serves: which may come, and which is next.

Ranks that divide columns run the passes of a message together: the first of them chooses the next message, and tells
the others.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ringtrain.data.batches.sampler import batch_part
from ringtrain.exchange import tags
from ringtrain.exchange.announcements import Announcements, Announcer
from ringtrain.exchange.model_parallel.activation_messages import (
    GOODBYE,
    ActivationChannel,
    Crossing,
    Header,
    Id,
    check_id,
    describe_id,
)
from ringtrain.nn.base import Pass
from ringtrain.nn.graph import Tapes
from ringtrain.train.step.partition import micro_batches
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers


@dataclass(frozen=True, slots=True)
class BatchCut:
    """The cut of a batch: ``places`` parts, one for each rank with images, each of up to ``parts`` micro-batches of
    whole grains and at most ``capacity`` examples."""

    places: int
    parts: int
    grain: int
    capacity: int


def messages_of(iteration: int, total: int, cut: BatchCut) -> list[Id]:
    """All messages of an iteration of ``total`` examples, in the order in which they are handled: micro-batch by
    micro-batch, places in order."""
    messages = []
    for place in range(cut.places):
        start, stop = batch_part(total, place, cut.places, cut.grain)
        parts = micro_batches(stop - start, cut.parts, cut.grain)
        messages += [(iteration, place, micro) for micro in range(len(parts))]
    return sorted(messages, key=lambda id: id[2])


@dataclass(slots=True)
class MessageSlot:
    """The memory of a micro-batch on its way through a rank.

    number:         of the slot among all
    before, behind: its messages from and to the group before, and to and from the one behind, where there is one
    ctx, tapes:     from forward to backward
    """

    number: int
    before: Crossing = field(init=False)
    behind: Crossing = field(init=False)
    ctx: Pass = field(init=False)
    tapes: Tapes = field(init=False)


class PlaceMessages:
    """The messages of one place, in order. A rank in front has no more of them under way than there are ``slots``.

    came:   their activations have come, or are under way
    onward: they are on the ranks behind
    gone:   whether the place has said goodbye
    """

    def __init__(self, headers: Announcements, slots: Sequence[MessageSlot], mail: ActivationChannel):
        self.headers, self._slots, self._mail = headers, slots, mail
        self.came: deque[tuple[Header, MessageSlot]] = deque()
        self.onward: deque[tuple[Header, MessageSlot]] = deque()
        self.gone = True
        self._seen = 0
        self._due: int | None = 0

    def open(self, due: int | None) -> None:
        """Expect so many messages; None: any number, until a goodbye."""
        self._due, self.gone = due, False
        if due != 0:
            self.headers.listen()

    def poll(self) -> None:
        """Expect the activations of a header that has come."""
        numbers = self.headers.arrived()
        if numbers is None:
            return
        header = Header(*numbers)
        if header.count == GOODBYE:
            self.gone = True
            return
        slot = self._slots[self._seen % len(self._slots)]
        self._seen += 1
        self._mail.expect(slot.before.forward, header.count)
        self.came.append((header, slot))
        if self._due is not None:
            self._due -= 1
        if self._due != 0:
            self.headers.listen()

    @property
    def is_here(self) -> bool:
        """Whether the activations of the first message are here."""
        return bool(self.came) and self.came[0][1].before.forward.has_come

    @property
    def is_back(self) -> bool:
        """Whether the first message is back from the ranks behind."""
        return bool(self.onward) and self.onward[0][1].behind.back.has_come


class Kind(IntEnum):
    FORWARD = 1
    BACKWARD = 2
    GOODBYE = 3


Choice = tuple[Kind, int]  # what to run for the first message of which place


class FcMessages:
    """The messages of all places, and the next of them: the first rank of ``group`` chooses it, and tells the others.

    places:  the messages of each place
    ordered: whether messages are taken in one order, micro-batch by micro-batch, and not as they come
    leads:   whether this rank chooses
    """

    def __init__(self, places: Sequence[PlaceMessages], ordered: bool, group: Transport, mail: ActivationChannel):
        self._places, self._ordered, self._mail = places, ordered, mail
        self.leads, self._first = group.rank == 0, group.world_ranks[0]
        if self.leads:
            self._announcer = Announcer(group, range(1, group.size), tags.CHOICE, mail.deadline_s, 2)
        else:
            self._chosen = Announcements(group, 0, tags.CHOICE, 2)
        self._due, self._away = deque[Id](), deque[int]()  # messages of this iteration to come; places of those onward

    def expect(self, messages: Sequence[Id]) -> None:
        """Expect these messages, in this order."""
        self._due.extend(messages)
        for number, place in enumerate(self._places):
            place.open(sum(place_number == number for _, place_number, _ in messages))

    def open(self) -> None:
        """Expect messages of all places until their goodbyes."""
        for place in self._places:
            place.open(None)

    # ── what is next ──────────────────────────────────────────────────────────────────────────────────────────
    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> Choice:
        """Return the next choice when it can be run; call ``meanwhile`` often."""
        choice: Choice | None = None

        def chosen() -> bool:
            nonlocal choice
            meanwhile()
            choice = self.test()
            return choice is not None

        self._mail.wait_until(chosen, self._describe_awaited)
        assert choice is not None, "the wait is over"
        return choice

    def test(self) -> Choice | None:
        """Return what to run next, and tell the others of the group; None if nothing has come."""
        self._poll()
        if not self.leads:
            self._chosen.listen()
            numbers = self._chosen.arrived()
            return (Kind(numbers[0]), numbers[1]) if numbers else None
        choice = next(self._possible(), None)
        if choice is not None:
            self._announcer.send(*choice)
        return choice

    def _poll(self) -> None:
        for place in self._places:
            place.poll()

    def _wait_until(self, come: Callable[[], bool]) -> None:
        def polled() -> bool:
            self._poll()
            return come()

        self._mail.wait_until(polled, self._describe_awaited)

    def _possible(self) -> Iterator[Choice]:
        """Yield what may be run now; gradients first."""
        everywhere = range(len(self._places))
        for number in list(self._away)[:1] if self._ordered else everywhere:
            if self._places[number].is_back:
                yield Kind.BACKWARD, number
        for number in [place for _, place, _ in self._due][:1] if self._ordered else everywhere:
            if self._places[number].is_here:
                yield Kind.FORWARD, number
        if all(place.gone and not place.came and not place.onward for place in self._places):
            yield Kind.GOODBYE, 0

    def take(self, choice: Choice) -> tuple[Header, MessageSlot]:
        """Return the message of a choice, when this rank has its rows, too. Raises TransportError for another message
        than the one that is due."""
        kind, number = choice
        place = self._places[number]
        if kind is Kind.BACKWARD:
            self._wait_until(lambda: place.is_back)
            self._away.remove(number)
            return place.onward.popleft()
        self._wait_until(lambda: place.is_here)
        header, slot = place.came.popleft()
        if self._due:  # else any number of messages may come
            due = next(id for id in self._due if id[1] == number)
            check_id(place.headers.peer, header.id, due)
            self._due.remove(due)
        return header, slot

    def wait_for_goodbyes(self) -> None:
        """Wait for the goodbyes of all places: the choice of the group's first rank may be here before them."""
        self._wait_until(lambda: all(place.gone for place in self._places))

    def send_on(self, header: Header, slot: MessageSlot) -> None:
        """Note that a message is on the ranks behind."""
        self._places[header.place].onward.append((header, slot))
        self._away.append(header.place)

    def _describe_awaited(self) -> str:
        onward = [place.onward[0] for place in self._places if place.onward]
        if onward:
            return "; ".join(describe_awaited(slot.behind.back.peers, header.id) for header, slot in onward)
        if not self.leads:
            return f"rank {self._first} to name the next micro-batch"
        if self._due:
            return describe_awaited([self._places[self._due[0][1]].headers.peer], self._due[0])
        ranks = peers(place.headers.peer for place in self._places if not place.gone)
        return f"{ranks} to send activations"


def describe_awaited(ranks: Sequence[int], id: Id) -> str:
    """Return the ranks that are to send a micro-batch, in words."""
    return f"{peers(ranks)} to send {describe_id(id)}"
