"""The moments at which all ranks have the same weights: before an evaluation, a checkpoint, and the end."""

from collections.abc import Callable
from enum import Enum

from ringtrain.exchange.base import Lag, Serving
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.servers.endpoint import Endpoint


class Phase(Enum):
    EQUAL = "all ranks have the same weights"
    APART = "workers push and pull"
    DRAINED = "the servers have all updates, and the other ranks do not yet have these weights"


class Meetings(Serving):
    """Drains the updates of all workers, then brings the servers' weights to all ranks.

    weights:     broadcasts the servers' weights
    push_rest:   pushes the updates that this worker has not pushed, and pulls

    ``states_differ``: whether the optimizer's state may differ from rank to rank.
    """

    def __init__(self, endpoint: Endpoint, weights: Reducer, add: SumOverRanks, push_rest: Callable[[], None]):
        self._endpoint, self._weights, self._add, self._push_rest = endpoint, weights, add, push_rest
        self._phase, self.states_differ = Phase.EQUAL, False

    def begin(self) -> None:
        """Let workers push and pull from now on."""
        if self._phase is Phase.DRAINED:
            self.synchronize()
        if self._phase is Phase.EQUAL:
            self._phase = Phase.APART
            self._endpoint.open()

    def poll(self) -> None:
        self._endpoint.serve()

    def serve(self, meanwhile: Callable[[], None]) -> None:
        self.begin()
        self._endpoint.serve_until_quiet(meanwhile)

    def drain_peers(self) -> None:
        if self._phase is Phase.DRAINED:
            return
        self.begin()
        self._push_rest()
        self._endpoint.goodbye()
        self._endpoint.serve_until_quiet(lambda: None)
        self._phase = Phase.DRAINED

    def synchronize(self) -> None:
        """Bring the servers' weights to all ranks, unless no worker has pushed since the last time."""
        self.drain_peers()
        self._phase = Phase.EQUAL
        pushed, self._endpoint.has_pushed = self._endpoint.has_pushed, False
        if self._add(pushed):
            self.states_differ = True
            self._endpoint.publish()
            self._weights.wait_all()

    def lag(self) -> Lag | None:
        return None if self._endpoint.shard is None else self._endpoint.shard.clock.lag()
