"""Keys and values that all ranks share: they lie with rank 0, and travel in messages. No port is opened.

A request is JSON, its values text of one byte a character. Rank 0 answers in a thread, which sleeps between looks. A
request for keys that are not there yet stays there until they are, or its time is up.
"""

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.base import Transport

OWNER = 0
REQUESTS = 0  # the tag of requests; answers have one of ANSWERS
ANSWERS = range(1, 1 << 14)
SHORTEST_S, LONGEST_S = 100e-6, 5e-3  # between two looks for a message
LIVELY_S = 0.05  # for so long after a message the next one is looked for often
LATE_S = 60.0  # for the answer, after the time in which the owner has to give it


class KeyTable:
    """The keys and values, and what each request does with them. ``act`` alone changes it."""

    def __init__(self):
        self.values: dict[str, bytes] = {}

    def act(self, do: str, keys: Sequence[str], values: Sequence[bytes] = ()) -> list | None:
        """Do the request, and return its result; None if it needs keys that are not there."""
        if do in ("get", "wait") and self.missing(keys):
            return None
        return getattr(self, f"_{do}")(keys, values)

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self.values]

    def _set(self, keys, values) -> list:
        self.values.update(zip(keys, values, strict=True))
        return []

    def _get(self, keys, _) -> list:
        return [self.values[key] for key in keys]

    def _wait(self, keys, _) -> list:
        return []

    def _check(self, keys, _) -> list:
        return [not self.missing(keys)]

    def _add(self, keys, values) -> list:
        total = int(self.values.get(keys[0], b"0")) + int(values[0])
        self.values[keys[0]] = b"%d" % total
        return [total]

    def _append(self, keys, values) -> list:
        self.values[keys[0]] = self.values.get(keys[0], b"") + values[0]
        return []

    def _compare_set(self, keys, values) -> list:
        """Set the second value where the first one lies, or where nothing lies if that is empty; return what lies
        there now, or the first value if nothing does."""
        expected, wanted = values
        current = self.values.get(keys[0])
        if current == expected or (current is None and not expected):
            self.values[keys[0]] = wanted
        return [self.values.get(keys[0], expected)]

    def _delete(self, keys, _) -> list:
        return [self.values.pop(keys[0], None) is not None]

    def _count(self, _, __) -> list:
        return [len(self.values)]


class KeyValueStore:
    """One rank's end of the keys and values of a world. Collective to make; its requests are not. Threads may share it.

    In a world of several ranks the thread of rank 0 runs until :meth:`close`.
    """

    def __init__(self, transport: Transport):
        self._transport, self.rank = transport, transport.rank
        self._messages = transport.service_messages()
        self._tags = count()
        self._table, self._changed = KeyTable(), threading.Condition()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        if self.rank == OWNER and transport.size > 1:
            self._thread = threading.Thread(target=self._serve, name="key-value store", daemon=True)
            self._thread.start()
        transport.before_leaving.append(self.leave)

    def request(self, do: str, keys: Sequence[str], values: Sequence[bytes] = (), timeout_s: float = 0.0) -> list:
        """Return the result of a request of :class:`KeyTable`. Raises StalledError, which names the keys, if they are
        not there after ``timeout_s`` seconds."""
        if self.rank == OWNER:
            result = self._act_here(do, keys, values, timeout_s)
        else:
            result = self._ask(do, keys, values, timeout_s)
        if result is None:
            named = ", ".join(map(repr, keys[:4])) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
            raise StalledError(f"no rank has set {named} within {timeout_s:g} s")
        return result

    def close(self) -> None:
        """End the thread and free the messages. Collective: no rank makes a request afterwards."""
        self._transport.barrier()
        self.leave()
        self._messages.close()

    def leave(self) -> None:
        """End the thread. Not collective; a second call does nothing."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _act_here(self, do: str, keys, values, timeout_s: float) -> list | None:
        until = time.monotonic() + timeout_s
        with self._changed:
            while (result := self._table.act(do, keys, values)) is None:
                if time.monotonic() >= until:
                    return None
                self._changed.wait(until - time.monotonic())
            self._changed.notify_all()
            return result

    def _ask(self, do: str, keys, values, timeout_s: float) -> list | None:
        tag = ANSWERS[next(self._tags) % len(ANSWERS)]
        self._messages.send(OWNER, REQUESTS, _as_bytes([do, list(keys), _as_text(values), timeout_s, tag]))
        asked = time.monotonic()
        while (answer := self._messages.receive(tag, OWNER)) is None:
            if time.monotonic() > asked + timeout_s + LATE_S:
                raise StalledError(
                    f"rank {OWNER} does not answer the request to {do} {', '.join(map(repr, keys))}: it has ended, or "
                    "it hangs"
                )
            time.sleep(_pause_s(asked))
        result = json.loads(answer[1])
        return (
            result if result is None else [each.encode("latin-1") if isinstance(each, str) else each for each in result]
        )

    def _serve(self) -> None:
        waiting: list[tuple] = []  # requests for keys that are not there
        last = time.monotonic()
        with suppress(TransportError):  # a rank has died: the main thread sees that in its own wait
            while not self._ending.wait(_pause_s(last)):
                for peer, data in iter(lambda: self._messages.receive(REQUESTS), None):
                    last = time.monotonic()
                    do, keys, encoded, timeout_s, tag = json.loads(data)
                    values = [each.encode("latin-1") for each in encoded]
                    waiting.append((peer, tag, do, keys, values, last + timeout_s))
                waiting = [each for each in waiting if not self._answered(*each)]

    def _answered(self, peer: int, tag: int, do: str, keys, values, until: float) -> bool:
        with self._changed:
            result = self._table.act(do, keys, values)
            if result is None and time.monotonic() < until:
                return False
            self._changed.notify_all()
        self._messages.send(peer, tag, _as_bytes(result if result is None else _as_text(result)))
        return True


def _pause_s(last: float) -> float:
    """Return the time until the next look; ``last``: when there was something."""
    return SHORTEST_S if time.monotonic() - last < LIVELY_S else LONGEST_S


def _as_bytes(value) -> bytes:
    return json.dumps(value).encode()


def _as_text(values) -> list:
    return [bytes(each).decode("latin-1") if isinstance(each, (bytes, bytearray)) else each for each in values]
