"""The two orders of operations that an exchange has to do with: the network's, and its own beside that.

On a device what an exchange adds, packs and copies need not wait for what backward has still to compute, nor the other
way round; on a host both are one, and done when they return::

    network     backward 3 ─●─ backward 2 ─●─ backward 1 ─●─                ○─ update 3 ─○─ update 2 …
                            │ final                                         │ joined
    exchange                └──► messages, additions ──► messages ──────────┘

A mark of the network's says when gradients are final (●): until then nothing of their bucket begins. When it has
arrived the network's operations are told to come after the exchange's (○): the host waits for neither.
"""

from dataclasses import dataclass

from ringtrain.collectives.execution.reduction import HOST


@dataclass(frozen=True, slots=True)
class StreamPair:
    """``network`` and ``own``: :class:`ringtrain.ops.base.Ops` of one device."""

    network: object
    own: object

    @property
    def is_device(self) -> bool:
        return self.own is not self.network

    def final(self):
        """A mark after what was issued to the network so far."""
        return self.network.mark()

    def join(self) -> None:
        """What the network does from now on comes after what the exchange was told so far."""
        if self.is_device:
            self.network.after(self.own.mark())


def stream_pair(ops) -> StreamPair:
    """Once for an exchange: what it is told then has one order."""
    return StreamPair(ops, ops.beside())


ON_HOST = StreamPair(HOST, HOST)
