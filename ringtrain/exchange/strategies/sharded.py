"""Every rank updates the shard that it owns, and keeps the optimizer's state of that shard alone. Exact.

The first half of an all-reduce sums gradients: a rank ends with the sums of its shard. The second half gathers the
weights, and for a checkpoint the state.

Bytes: an all-reduce's. Memory: weights and gradients, and the optimizer's state divided by the ranks. Shards
are cut without regard to parameters: norms, of a whole gradient or a whole parameter, are made of the sums of squares
of all shards.

Source: Feng, Shi & Jain, CaffeOnSpark, Yahoo 2016; Rajbhandari et al., ZeRO, SC 2020 (stage 1).
"""

from ringtrain.exchange.base import ExchangeFacts, all_train
from ringtrain.exchange.buckets.ownership import Ownership, by_schedule, schedule_name
from ringtrain.exchange.owned import Owned
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.ranges import elements
from ringtrain.humanize import format_bytes
from ringtrain.memory.arena import Arena
from ringtrain.optim.optimizers import Optimizer


def make_sharded(settings: ExchangeSettings) -> Owned:
    """Return the exchange in which every rank owns a slice of each bucket."""
    size, algorithm = settings.transport.size, schedule_name(settings.config.algorithm, settings.transport)

    def divide(arena: Arena, optimizer: Optimizer) -> tuple[Ownership, list[str]]:
        owners = by_schedule(algorithm, settings, arena)
        nbytes = arena.grads.dtype.itemsize * len(optimizer.slots)
        shares = [elements(owners.owned(rank)) for rank in range(size)]
        least, most, whole = (format_bytes(nbytes * count) for count in (min(shares), max(shares), sum(shares)))
        each = most if least == most else f"{least} to {most}"
        return owners, [f"sharded by {algorithm}: a rank keeps {each} of the optimizer's {whole}"]

    facts = ExchangeFacts(name="sharded", roles=all_train(size), exact=True, state_is_local=False)
    return Owned(settings, facts, divide)
