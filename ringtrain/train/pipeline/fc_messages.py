"""The messages that a rank with fully connected layers serves: which may come, and which is next.

Ranks that divide columns run the passes of a message together: the first of them chooses the next message, and tells
the others.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from ringtrain.data.batches.sampler import batch_part
from ringtrain.exchange import tags
from ringtrain.exchange.model_parallel.activation_messages import (
    GOODBYE,
    ActivationChannel,
    ActivationMessage,
    Header,
    HeaderReceiver,
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


@dataclass(frozen=True, slots=True)
class StageMessage:
    micro: int
    place: int
    count: int  # examples


def messages_of(total: int, cut: BatchCut) -> list[StageMessage]:
    """All messages of an iteration of ``total`` examples, in the order in which they are handled."""
    messages = []
    for place in range(cut.places):
        start, stop = batch_part(total, place, cut.places, cut.grain)
        parts = micro_batches(stop - start, cut.parts, cut.grain)
        messages += [StageMessage(micro, place, b - a) for micro, (a, b) in enumerate(parts)]
    return sorted(messages, key=lambda message: (message.micro, message.place))


@dataclass(slots=True)
class MessageSlot:
    """The memory of a message on its way through this rank.

    number:     of the slot among all
    activations, gradient: from and to the group before
    onward:     the activations to the next group, and their gradient; None if this rank has the loss
    ctx, tapes: from forward to backward
    """

    number: int
    activations: ActivationMessage
    gradient: ActivationMessage
    onward: tuple[ActivationMessage, ActivationMessage] | None = None
    ctx: Pass = field(init=False)
    tapes: Tapes = field(init=False)


class PlaceMessages:
    """The messages of one place, in order. A rank in front has no more of them under way than there are ``slots``.

    came:   their activations have come, or are under way
    onward: they are on the ranks behind
    gone:   whether the place has said goodbye
    """

    def __init__(self, headers: HeaderReceiver, slots: Sequence[MessageSlot], mail: ActivationChannel):
        self.headers, self._slots, self._mail = headers, slots, mail
        self.came: deque[tuple[Header, MessageSlot]] = deque()
        self.onward: deque[tuple[Header, MessageSlot]] = deque()
        self.gone = True
        self._seen = 0
        self._due: int | None = 0

    def open(self, due: int | None) -> None:
        """Expect so many messages; None: any number, until a goodbye."""
        self._due, self.gone = due, False
        if due != 0 and not self.headers.listening:
            self.headers.listen()

    def poll(self) -> None:
        """Expect the activations of a header that has come."""
        header = self.headers.arrived()
        if header is None:
            return
        if header.count == GOODBYE:
            self.gone = True
            return
        slot = self._slots[self._seen % len(self._slots)]
        self._seen += 1
        self._mail.expect(slot.activations, header.count)
        self.came.append((header, slot))
        if self._due is not None:
            self._due -= 1
        if self._due != 0:
            self.headers.listen()

    @property
    def is_here(self) -> bool:
        """Whether the activations of the first message are here."""
        return bool(self.came) and self.came[0][1].activations.has_come

    @property
    def is_back(self) -> bool:
        """Whether the first message is back from the ranks behind."""
        first = self.onward[0][1] if self.onward else None
        return first is not None and first.onward is not None and first.onward[1].has_come


class Kind(IntEnum):
    FORWARD = 1
    BACKWARD = 2
    GOODBYE = 3


Choice = tuple[Kind, int]  # what to run for the first message of which place


class ChosenByFirst:
    """Tells the ranks of a group what the first of them has chosen."""

    def __init__(self, group: Transport, deadline_s: float):
        self.leads, self.first, self._deadline_s = group.rank == 0, group.world_ranks[0], deadline_s
        self._choice, self._listening = np.zeros(2, np.int64), False
        moves = [(other, self._choice) for other in (range(1, group.size) if self.leads else [0])]
        self._handle = (group.sends if self.leads else group.recvs)(moves, tags.CHOICE)

    def tell(self, choice: Choice) -> None:
        self._handle.wait(self._deadline_s)
        self._choice[:] = choice
        self._handle.start()

    def heard(self) -> Choice | None:
        """Return the next choice; None if it has not come."""
        if not self._listening:
            self._handle.start()
            self._listening = True
        if not self._handle.test():
            return None
        self._listening = False
        return Kind(self._choice[0]), int(self._choice[1])


class FcMessages:
    """The messages of all places.

    places:  the messages of each place
    ordered: whether messages are taken in one order, micro-batch by micro-batch, and not as they come
    """

    def __init__(self, places: Sequence[PlaceMessages], ordered: bool, group: Transport, mail: ActivationChannel):
        self._places, self._ordered, self._mail = places, ordered, mail
        self._choice = ChosenByFirst(group, mail.deadline_s)
        self._due, self._away = deque[Id](), deque[int]()  # messages of this iteration to come; places of those onward

    @property
    def leads(self) -> bool:
        """Whether this rank chooses."""
        return self._choice.leads

    def expect(self, messages: Sequence[StageMessage], iteration: int) -> None:
        """Expect these messages, in this order."""
        self._due.extend((iteration, message.place, message.micro) for message in messages)
        for number, place in enumerate(self._places):
            place.open(sum(message.place == number for message in messages))

    def open(self) -> None:
        """Expect messages of all places until their goodbyes."""
        for place in self._places:
            place.open(None)

    # ── what is next ──────────────────────────────────────────────────────────────────────────────────────────
    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> Choice:
        """Return the next choice when it can be run; call ``meanwhile`` often."""
        choices: list[Choice] = []

        def chosen() -> bool:
            meanwhile()
            choice = self.test()
            choices.extend([choice] if choice else [])
            return bool(choices)

        self._mail.wait_until(chosen, self._describe_awaited)
        return choices[0]

    def test(self) -> Choice | None:
        """Return what to run next, and tell the others of the group; None if nothing has come."""
        self._poll()
        if not self.leads:
            return self._choice.heard()
        choice = next(self._possible(), None)
        if choice is not None:
            self._choice.tell(choice)
        return choice

    def _poll(self) -> None:
        for place in self._places:
            place.poll()

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

        def here() -> bool:
            self._poll()
            return place.is_here if kind is Kind.FORWARD else place.is_back

        self._mail.wait_until(here, self._describe_awaited)
        if kind is Kind.BACKWARD:
            self._away.remove(number)
            return place.onward.popleft()
        header, slot = place.came.popleft()
        if self._due:  # else any number of messages may come
            due = next(id for id in self._due if id[1] == number)
            check_id(place.headers.peer, header.id, due)
            self._due.remove(due)
        return header, slot

    def wait_for_goodbyes(self) -> None:
        """Wait for the goodbyes of all places: the choice of the group's first rank may be here before them."""

        def gone() -> bool:
            self._poll()
            return all(place.gone for place in self._places)

        self._mail.wait_until(gone, self._describe_awaited)

    def send_on(self, header: Header, slot: MessageSlot) -> None:
        """Note that a message is on the ranks behind."""
        self._places[header.place].onward.append((header, slot))
        self._away.append(header.place)

    def _describe_awaited(self) -> str:
        onward = [place.onward[0] for place in self._places if place.onward]
        if onward:
            return "; ".join(
                describe_awaited(slot.onward[1].peers, header.id) for header, slot in onward if slot.onward
            )
        if not self.leads:
            return f"rank {self._choice.first} to name the next micro-batch"
        if self._due:
            return describe_awaited([self._places[self._due[0][1]].headers.peer], self._due[0])
        ranks = peers(place.headers.peer for place in self._places if not place.gone)
        return f"{ranks} to send activations"


def describe_awaited(ranks: Sequence[int], id: Id) -> str:
    """Return the ranks that are to send a micro-batch, in words."""
    return f"{peers(ranks)} to send {describe_id(id)}"
