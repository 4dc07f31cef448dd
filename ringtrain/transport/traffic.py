"""A counter of the bytes of a rank's messages over the links between nodes."""

from collections.abc import Callable, Collection, Sequence

from ringtrain.arrays import Array
from ringtrain.transport.buffers import Raw, as_bytes


class LinkTraffic:
    """The counter. ``between_bytes``: bytes of all started messages to ranks of other nodes than ``neighbours``.
    ``whole``: the traffic of the world that this group is a part of: it counts these messages, too.
    """

    def __init__(self, neighbours: Collection[int], whole: "LinkTraffic | None" = None):
        self._neighbours, self._whole = neighbours, whole
        self.between_bytes = 0

    def add(self, nbytes: int) -> None:
        self.between_bytes += nbytes
        if self._whole is not None:
            self._whole.add(nbytes)

    def counting(self, start: Callable[[], None], moves: Sequence[tuple[int, Array | Raw]]) -> Callable[[], None]:
        """Return ``start``, which starts the sends of these (peer, span), with the counting added; ``start`` itself if
        none leaves the node.
        """
        nbytes = sum(as_bytes(span).size for peer, span in moves if peer not in self._neighbours)
        if not nbytes:
            return start

        def counted() -> None:
            self.add(nbytes)
            start()

        return counted
