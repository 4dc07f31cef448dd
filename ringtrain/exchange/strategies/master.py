"""Rank 0 is the master: it reads the data, computes the loss, adds the gradients and updates. Exact.

1.  Rank 0 reads the whole batch, and sends every other rank its part.
2.  Every rank runs forward on its part, and sends the network's outputs to rank 0.
3.  Rank 0 computes the loss of all outputs, and sends every rank the gradient of its own.
4.  Every rank runs backward. Rank 0 adds the gradients, bucket by bucket, in the order of ranks.
5.  Rank 0 updates, and sends the weights to all.

Steps 4 and 5 are the two halves of the star (:mod:`ringtrain.collectives.algorithms.star`). Rank 0 trains, too, and has
the last part of the batch, which is never smaller than another: so it has as many micro-batches as any rank.

Bytes, n of gradients: another rank sends and receives n, rank 0 (p - 1)·n, and batches, outputs and their gradients in
addition. This strategy is a baseline for comparisons. Memory: rank 0 alone has the optimizer's state, and the gradients
of the others until they are added.

Source: DataParallel of PyTorch, Paszke et al., NeurIPS 2019; the data parallelism of Caffe and Torch before it.
"""

from ringtrain.collectives.algorithms.star import ROOT
from ringtrain.exchange.base import ExchangeFacts, Roles
from ringtrain.exchange.buckets.reducer import Reducer, Reducers
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.root_batches import RootBatches
from ringtrain.exchange.strategies.sharded import Sharded
from ringtrain.exchange.update.owned_update import STEP
from ringtrain.humanize import format_bytes

STAR = "star"


class Master(Sharded):
    """Sends the batch from rank 0, which adds the gradients, updates, and sends the weights back: its shard is all."""

    batches: RootBatches
    divides_parameters = False

    def __init__(self, settings: ExchangeSettings):
        super().__init__(settings, STAR)
        self._is_root = settings.transport.rank == ROOT
        self.batches = RootBatches(settings)
        self._received = 0  # bytes of gradients, or weights
        others = (rank for rank in range(settings.transport.size) if rank != ROOT)
        self.facts = ExchangeFacts(
            name="master",
            header="on rank 0",
            roles=Roles(trainers=(*others, ROOT), loader=ROOT),
            exact=True,
            state_is_local=True,
            all_reduces=False,
        )

    def _make_reducers(self, training: dict[str, Reducer]) -> Reducers:
        return Reducers(
            training, messages=[self.batches], received=lambda: self._received + self.batches.bytes_received
        )

    def _memory(self, shares: list[int], nbytes: int) -> str:
        return (
            f"rank {ROOT} reads all batches, computes the loss and keeps the optimizer's "
            f"{format_bytes(nbytes * sum(shares))}"
        )

    def finish(self, iteration: int, lr: float) -> None:
        super().finish(iteration, lr)
        copies = self._settings.transport.size - 1 if self._is_root else 1
        self._received += copies * self._arena.count * self._arena.grads.dtype.itemsize

    def _gather(self) -> dict:
        """Return the state on rank 0; elsewhere the step alone."""
        return self._update.state() if self._is_root else {STEP: self._update.step}
