"""The flight recorder: one row for each rank, with its last collectives, for all ranks to read.

A rank writes its own row, by plain stores of whole words into shared memory, and waits for no other rank. The word of a
collective holds its number and its fingerprint. So one store announces the collective, and one comparison with another
rank's word shows whether both make the same call:

    begun   256 words    number << 32 | fingerprint, in the place number mod 256
    done    256 words    the same word, once the collective has ended here
    moved   256 words    number << 32 | moves that are done
    calls    32 records  fingerprint and text of the calls that this rank makes
    doing    a text      the stage of the rank at its last beat

Stores of different words have no order: a reader looks again before it reports a difference.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.transport.base import Transport

RING = 256  # collectives that a row remembers
MASK = RING - 1
CALLS, TEXT_BYTES = 32, 152  # calls that a row describes; where there are more, the newest
BEATS, LEFT, DOING_MS, LIMITED, ITERATION, TOLD, TOUCHES, HEADER = 0, 1, 2, 3, 4, 5, 6, 8  # words
EVERYTHING = -1  # the report is about the run, not about one collective
BEGUN, DONE, MOVED, DESCRIBED = HEADER, HEADER + RING, HEADER + 2 * RING, HEADER + 3 * RING
CALL_WORDS = 1 + TEXT_BYTES // 8
DOING = DESCRIBED + CALLS * CALL_WORDS
WORDS = DOING + TEXT_BYTES // 8
ROW_BYTES = 8 * WORDS
SHIFT = 32
LOW = (1 << SHIFT) - 1


def fingerprint(text: str) -> int:
    """Return 32 bits that tell calls apart. ``text``: of a call, as in messages, "all-reduce of 1,000 float32 by ring
    (sum)"; equal calls of ranks have equal texts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective in a rank's row. ``moved``: its progress, in units of its own."""

    number: int
    text: str
    done: bool
    moved: int


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The content of a rank's row."""

    rank: int  # in the world, of which the ranks may be a group
    entries: dict[int, RecordedCollective]  # its last collectives by number
    iteration: int  # of training, from 1; 0 before it
    left: bool  # whether it begins no more collectives
    host: str = ""
    # its stage, for ``doing_s`` seconds now; ``limited``: the rank itself reports a stage that takes too long
    doing: str = ""
    doing_s: float = 0.0
    limited: bool = False
    silent_s: float | None = None  # for how long it has given no sign of life; None if it gives them

    @property
    def last(self) -> int:
        """Number of the collective that this rank began last; they count from 1."""
        return max(self.entries, default=0)


class FlightRecorder:
    """One rank's view of the rows. Making one is collective; all ranks number their collectives alike, from 1.

    last:       number of the collective that this rank began last
    world_rank: this rank's rank in the first world: the transport may connect only a group of it
    """

    def __init__(self, transport: Transport):
        memory = transport.board(ROW_BYTES)
        self.rank, self.size, self.gap = transport.rank, transport.size, memory.gap
        self._world_ranks, self.world_rank = transport.world_ranks, transport.world_ranks[transport.rank]
        self._words = memory.rows.view(np.int64)  # [size, WORDS]
        self.history = self._words[:, ITERATION:DESCRIBED]  # changes when ranks make progress
        self.beats = self._words[:, BEATS]
        row = memoryview(memory.rows[self.rank]).cast("q")
        self._row_words, self._begun, self._done = row, row[BEGUN:DONE], row[DONE:MOVED]
        following = memory.near[(memory.near.index(self.rank) + 1) % len(memory.near)]
        self._next = memoryview(memory.rows[following]).cast("q")[BEGUN:DONE]
        self.last = 0
        self._described: dict[int, str] = {}
        self._fingerprints: dict[str, int] = {}
        self._doing = ""
        self._hosts = transport.gather_json(transport.activity.host)

    # ── this rank writes ──────────────────────────────────────────────────────────────────────────────────
    def describe(self, text: str) -> int:
        """Return the fingerprint of a call, and write its text for others to read before the first such collective."""
        mark = self._fingerprints.get(text)
        if mark is None:
            mark = self._fingerprints[text] = fingerprint(text)
            place = DESCRIBED + len(self._described) % CALLS * CALL_WORDS
            self._described[mark] = text
            self._write(place + 1, text)
            self._row_words[place] = mark
        return mark

    def _write(self, place: int, text: str) -> None:
        padded = text.encode(errors="replace")[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        self._words[self.rank, place : place + TEXT_BYTES // 8] = np.frombuffer(padded, np.int64)

    def do(self, text: str, seconds: float, limited: bool, touches: int) -> None:
        """Write the stage of this rank and its seconds so far; ``touches``: how often a stage has made progress."""
        if text != self._doing:
            self._doing = text
            self._write(DOING, text)
        row = self._row_words
        row[DOING_MS], row[LIMITED], row[TOUCHES] = int(1000 * seconds), limited, touches

    def begin(self, fingerprint: int) -> int:
        """Begin the next collective of this rank, and return its word."""
        self.last = number = self.last + 1
        self._begun[number & MASK] = word = number << SHIFT | fingerprint
        return word

    def next_rank_differs(self, word: int) -> bool:
        """Whether the next rank of this node has already made another call under the same number."""
        other = self._next[word >> SHIFT & MASK]
        return other != word and other >> SHIFT == word >> SHIFT

    def end(self, word: int) -> bool:
        """End the collective. Returns whether the next rank of this node is known to have made the same call."""
        place = word >> SHIFT & MASK
        if self._begun[place] == word:  # otherwise a later collective has taken its place
            self._done[place] = word
        return self._next[place] == word

    def move(self, word: int, moved: int) -> None:
        number = word >> SHIFT
        self._row_words[MOVED + (number & MASK)] = number << SHIFT | moved & LOW

    def beat(self) -> None:
        """Show that this rank is alive."""
        self._row_words[BEATS] += 1

    def iterate(self, iteration: int) -> None:
        self._row_words[ITERATION] = iteration

    def leave(self) -> None:
        """Show that this rank begins no more collectives."""
        self._row_words[LEFT] = 1

    def report(self, number: int = EVERYTHING) -> None:
        """Show that this rank reports an error of all ranks; ``number``: of the collective, if it is about one."""
        self._row_words[TOLD] = number

    # ── this rank reads all ───────────────────────────────────────────────────────────────────────────────
    def inside(self) -> list[int]:
        """The words of the collectives that this rank has begun and not ended, oldest first."""
        return sorted(word for word, done in zip(self._begun, self._done, strict=True) if word != done)

    def differs(self, word: int) -> bool:
        """Whether a rank makes another call under the same number."""
        others = self._words[:, BEGUN + (word >> SHIFT & MASK)].copy()  # one state: other ranks write meanwhile
        return bool(((others >> SHIFT == word >> SHIFT) & (others != word)).any())

    def first_difference(self) -> int:
        """The number of the first recorded collective in which ranks make different calls; 0 if there is none."""
        words = self._words[:, BEGUN:DONE].copy()  # one state: other ranks write meanwhile
        row = words[self.rank]
        places = ((words >> SHIFT == row >> SHIFT) & (words != row)).any(axis=0)
        return int(row[places].min() >> SHIFT) if places.any() else 0

    def reported_number(self) -> int:
        """The number of the collective that another rank reports, EVERYTHING if it reports the run; 0 if no rank
        reports."""
        numbers = np.delete(self._words[:, TOLD], self.rank)
        return int(numbers[numbers != 0][0]) if numbers.any() else 0

    def read(self, silent_s: Callable[[int], float | None] = lambda rank: None) -> list[RankRecord]:
        """Return the content of all rows. ``silent_s(rank)``: as in :class:`RankRecord`"""
        return [self._row(rank, words, silent_s(rank)) for rank, words in enumerate(self._words.copy())]

    def _row(self, rank: int, words: np.ndarray, silent_s: float | None) -> RankRecord:
        records = words[DESCRIBED:DOING].reshape(CALLS, CALL_WORDS)
        described = self._described | {int(record[0]): _text(record[1:]) for record in records}
        entries = {}
        for word, done, moved in zip(*words[BEGUN:DESCRIBED].reshape(3, RING).tolist(), strict=True):
            if word:
                number, text = (
                    word >> SHIFT,
                    described.get(word & LOW, "a call whose text has left the flight recorder"),
                )
                moves = moved & LOW if moved >> SHIFT == number else 0
                entries[number] = RecordedCollective(number, text, done == word, moves)
        return RankRecord(
            self._world_ranks[rank],
            dict(sorted(entries.items())),
            int(words[ITERATION]),
            bool(words[LEFT]),
            self._hosts[rank],
            _text(words[DOING:WORDS]),
            int(words[DOING_MS]) / 1000,
            bool(words[LIMITED]),
            silent_s,
        )


def _text(words: np.ndarray) -> str:
    return words.tobytes().rstrip(b"\0").decode(errors="replace")
