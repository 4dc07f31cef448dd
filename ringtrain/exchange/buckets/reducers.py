"""The reducers of a strategy: for traces, for the count of bytes and time, and for the end of a run."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.timings import Traffic


class Counted(Protocol):
    bytes_sent: int
    exposed_s: float


class Reducers:
    """training: the reducers of an iteration, by the name of what they carry
    others:   reducers outside of iterations; they are not counted
    messages: further senders, whose bytes and seconds are counted
    received: returns the bytes that this rank has received; None where they are not counted
    buckets:  whether traffic is reported by bucket
    before_close: completes what is under way
    """

    def __init__(
        self,
        training: dict[str, Reducer],
        others: Sequence[Reducer] = (),
        messages: Sequence[Counted] = (),
        received: Callable[[], int] | None = None,
        buckets: bool = True,
        before_close: Callable[[], None] | None = None,
    ):
        self.training, self._others, self._messages = training, others, messages
        self._received, self._buckets, self._before_close = received, buckets, before_close

    def with_messages(self, messages: Counted) -> "Reducers":
        """The same reducers, with the bytes and seconds of another sender."""
        rest = self._received, self._buckets, self._before_close
        return Reducers(self.training, self._others, (*self._messages, messages), *rest)

    def traffic(self) -> Traffic:
        """The bytes and the seconds of training. Not those of gathering a state."""
        counted = [*self._messages, *self.training.values()]
        rows = [row for name, reducer in self.training.items() if self._buckets for row in reducer.traffic(name)]
        return Traffic(
            sum(one.bytes_sent for one in counted),
            sum(one.exposed_s for one in counted),
            self._received and self._received(),
            tuple(rows),
        )

    def close(self) -> None:
        """Release the prepared reductions; collective."""
        if self._before_close:
            self._before_close()
        for reducer in (*self.training.values(), *self._others):
            reducer.close()
