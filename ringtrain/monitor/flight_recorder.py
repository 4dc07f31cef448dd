"""What every rank is doing, for all ranks to read: a row for each rank, with its last collectives.

A rank writes its own row, by plain stores of whole words into shared memory, and is never waited for; the others read.
The word of a collective holds its number and its fingerprint together, so that one store announces it and one
comparison with another rank's word tells whether the two make the same call:

    begun   256 words    number << 32 | fingerprint, in the place number mod 256
    done    256 words    the same word, once the collective has ended here
    moved   256 words    number << 32 | how far it has got
    calls    32 records  fingerprint and text of the calls that this rank makes
    doing    a text      what the rank does besides, as of its last beat

Nothing here orders the stores of different words: what looks wrong is looked at again before it is told.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from ringtrain.transport import texts

RING = 256  # collectives that a row remembers
MASK = RING - 1
CALLS, TEXT_BYTES = 32, 152  # calls that a row describes; where there are more, the newest
BEATS, LEFT, DOING_MS, LIMITED, ITERATION, TOLD, TOUCHES, HEADER = 0, 1, 2, 3, 4, 5, 6, 8  # words
EVERYTHING = -1  # told of no collective, but of the run
BEGUN, DONE, MOVED, DESCRIBED = HEADER, HEADER + RING, HEADER + 2 * RING, HEADER + 3 * RING
CALL_WORDS = 1 + TEXT_BYTES // 8
DOING = DESCRIBED + CALLS * CALL_WORDS
WORDS = DOING + TEXT_BYTES // 8
ROW_BYTES = 8 * WORDS
SHIFT = 32
LOW = (1 << SHIFT) - 1


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What a rank calls. ``text``: for people, "all-reduce of 1,000 float32 by ring (sum)"; ranks that call the same
    have the same."""

    text: str
    fingerprint: int


def make_call(text: str) -> CollectiveCall:
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return CollectiveCall(text, int.from_bytes(digest, "little"))


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective in a rank's row. ``moved``: how far it has got, in units of its own."""

    number: int
    fingerprint: int
    text: str
    done: bool
    moved: int


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What a rank's row says.

    entries:   its last collectives by number
    iteration: of the training, from 1, and 0 before it
    left:      whether it begins no more collectives
    doing:     what it does besides, for ``doing_s`` seconds; ``limited``: it says itself when that takes too long
    """

    rank: int
    entries: dict[int, RecordedCollective]
    iteration: int
    left: bool
    host: str = ""
    doing: str = ""
    doing_s: float = 0.0
    limited: bool = False

    @property
    def last(self) -> int:
        """Number of the collective that this rank began last; they count from 1."""
        return max(self.entries, default=0)


class FlightRecorder:
    """One rank's place at the board. Collective to make; all ranks number their collectives alike, from 1."""

    def __init__(self, transport):
        memory = transport.board(ROW_BYTES)
        self.rank, self.size, self.gap = transport.rank, transport.size, memory.gap
        self._rows = memory.rows
        self._words = memory.rows.view(np.int64)  # [size, WORDS]
        self.history = self._words[:, ITERATION:DESCRIBED]  # what changes as ranks get on
        self.beats = self._words[:, BEATS]
        own = memoryview(memory.rows[self.rank]).cast("q")
        self._own, self._begun, self._done = own, own[BEGUN:DONE], own[DONE:MOVED]
        following = memory.near[(memory.near.index(self.rank) + 1) % len(memory.near)]
        self._next = memoryview(memory.rows[following]).cast("q")[BEGUN:DONE]
        self._number = 0  # of the collective that this rank began last
        self._described: dict[int, str] = {}
        self._doing = ""
        self._hosts = transport.gather_json(transport.activity.host)

    # ── this rank writes ──────────────────────────────────────────────────────────────────────────────────
    def describe(self, call: CollectiveCall) -> None:
        """Let others read what the call is. Before it is begun for the first time."""
        if call.fingerprint in self._described:
            return
        place = DESCRIBED + len(self._described) % CALLS * CALL_WORDS
        self._described[call.fingerprint] = call.text
        self._write(place + 1, call.text)
        self._own[place] = call.fingerprint

    def _write(self, place: int, text: str) -> None:
        padded = text.encode(errors="replace")[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        self._words[self.rank, place : place + TEXT_BYTES // 8] = np.frombuffer(padded, np.int64)

    def do(self, text: str, seconds: float, limited: bool, touches: int) -> None:
        """What this rank does besides, for so long already; ``touches``: how often it got on in that."""
        if text != self._doing:
            self._doing = text
            self._write(DOING, text)
        self._own[DOING_MS], self._own[LIMITED], self._own[TOUCHES] = int(1000 * seconds), limited, touches

    def begin(self, fingerprint: int) -> int:
        """This rank begins its next collective: the word by which it is known."""
        self._number = number = self._number + 1
        self._begun[number & MASK] = word = number << SHIFT | fingerprint
        return word

    def contradicted(self, word: int) -> bool:
        """Whether the next rank of this node has already made another call under the same number."""
        other = self._next[word >> SHIFT & MASK]
        return other != word and other >> SHIFT == word >> SHIFT

    def end(self, word: int) -> bool:
        """The collective has ended here. Whether the next rank of this node is known to have made the same call."""
        place = word >> SHIFT & MASK
        if self._begun[place] == word:  # else there are more in flight than places, and another has this one
            self._done[place] = word
        return self._next[place] == word

    def move(self, word: int, moved: int) -> None:
        number = word >> SHIFT
        self._own[MOVED + (number & MASK)] = number << SHIFT | moved & LOW

    def beat(self) -> None:
        """This rank is alive, whatever it does."""
        self._own[BEATS] += 1

    def iterate(self, iteration: int) -> None:
        self._own[ITERATION] = iteration

    def leave(self) -> None:
        """This rank begins no more collectives."""
        self._own[LEFT] = 1

    def tell(self, number: int = EVERYTHING) -> None:
        """This rank tells an error that concerns all, of the collective of this number if it is of one."""
        self._own[TOLD] = number

    @property
    def last(self) -> int:
        """Number of the collective that this rank began last."""
        return self._number

    # ── all ranks are read ────────────────────────────────────────────────────────────────────────────────
    def inside(self) -> list[int]:
        """Words of the collectives that this rank has begun and not ended, the oldest first."""
        return sorted(word for word, done in zip(self._begun, self._done, strict=True) if word != done)

    def differs(self, word: int) -> bool:
        """Whether a rank makes another call under the same number."""
        others = self._words[:, BEGUN + (word >> SHIFT & MASK)]
        return bool(((others >> SHIFT == word >> SHIFT) & (others != word)).any())

    def differing(self) -> int:
        """Number of the first collective in sight of which not all ranks make the same call; 0 where there is none."""
        words = self._words[:, BEGUN:DONE]
        own = words[self.rank]
        places = ((words >> SHIFT == own >> SHIFT) & (words != own)).any(axis=0)
        return int(own[places].min() >> SHIFT) if places.any() else 0

    def told_number(self) -> int:
        """Of the collective that another rank tells of, EVERYTHING where it tells of none; 0 where nobody tells."""
        numbers = np.delete(self._words[:, TOLD], self.rank)
        return int(numbers[numbers != 0][0]) if numbers.any() else 0

    def read(self) -> list[RankRecord]:
        return [self._row(rank, words) for rank, words in enumerate(self._words.copy())]

    def _row(self, rank: int, words: np.ndarray) -> RankRecord:
        described = self._described | _calls(words)
        places = zip(*(words[start : start + RING].tolist() for start in (BEGUN, DONE, MOVED)), strict=True)
        entries = (_entry(word, done, moved, described) for word, done, moved in places if word)
        by_number = {entry.number: entry for entry in sorted(entries, key=lambda entry: entry.number)}
        return RankRecord(
            rank,
            by_number,
            int(words[ITERATION]),
            bool(words[LEFT]),
            self._hosts[rank],
            _text(words[DOING:WORDS]),
            int(words[DOING_MS]) / 1000,
            bool(words[LIMITED]),
        )


def _calls(words: np.ndarray) -> dict[int, str]:
    records = words[DESCRIBED:DOING].reshape(CALLS, CALL_WORDS)
    return {int(record[0]): _text(record[1:]) for record in records}


def _text(words: np.ndarray) -> str:
    return words.tobytes().rstrip(b"\0").decode(errors="replace")


def _entry(word: int, done: int, moved: int, described: dict[int, str]) -> RecordedCollective:
    number, fingerprint = word >> SHIFT, word & LOW
    text = described.get(fingerprint, texts.FORGOTTEN_CALL)
    return RecordedCollective(number, fingerprint, text, done == word, moved & LOW if moved >> SHIFT == number else 0)
