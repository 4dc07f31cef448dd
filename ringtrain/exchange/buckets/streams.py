"""The two streams of operations of an exchange: the network's and its own.

On a device the additions, packs and copies of an exchange need not wait for the rest of backward, nor the other way
round; on a host both streams are one, and operations are done when they return::

    network     backward 3 ─●─ backward 2 ─●─ backward 1 ─●─                ○─ update 3 ─○─ update 2 …
                            │ final                                         │ joined
    exchange                └──► messages, additions ──► messages ──────────┘

A mark in the network's stream says when gradients are final (●): nothing of their bucket begins before. When the bucket
has arrived the network's stream waits for the exchange's (○); the host waits for neither.
"""

from dataclasses import dataclass

from ringtrain.ops.base import Mark, Ops


@dataclass(frozen=True, slots=True)
class StreamPair:
    """The network's stream and the exchange's own, of one device."""

    network: Ops
    exchange: Ops

    @property
    def is_device(self) -> bool:
        return self.exchange is not self.network

    def final(self) -> Mark:
        """Return a mark after all operations issued to the network."""
        return self.network.mark()

    def join(self) -> None:
        """Order the network's next operations after all operations issued to the exchange."""
        if self.is_device:
            self.network.after(self.exchange.mark())


def stream_pair(ops: Ops) -> StreamPair:
    """Return the streams of an exchange: call it once for each, so that its operations have one order."""
    return StreamPair(ops, ops.beside())
