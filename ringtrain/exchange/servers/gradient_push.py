"""Workers push gradients; each server sums the gradients of its shard, updates it, and sends the weights back. Exact.

A server adds gradients in the order of ranks, whichever arrive first, and answers when all workers have pushed:
staleness 0. It alone has the optimizer's state of its shard.

With ``--overlap backward`` gradients travel as they become final, and a server sends each bucket back when its sum has
arrived. With ``forward`` no rank waits for that after backward. Each goes on to the next forward pass, where a layer
waits for its own weights alone; a server updates and sends whatever has arrived, the lowest bucket first, between
layers and every 0.5 ms while it waits. A rank that has read all weights has started to send all those that it owns: so
it need not serve while it waits for the loss. On a device, where a message may leave later, it waits
until others have them. A dedicated server, which reads none, serves at once.

Source: of pulls layer by layer, Das et al., Distributed deep learning using synchronous stochastic gradient descent,
Intel 2016.
"""

from ringtrain.exchange.base import ExchangeFacts
from ringtrain.exchange.buckets.deferred_update import FORWARD
from ringtrain.exchange.buckets.ownership import Ownership
from ringtrain.exchange.owned import Owned
from ringtrain.exchange.servers.shards import roles_of, server_shards
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.memory.arena import Arena
from ringtrain.optim.optimizers import Optimizer


def make_gradient_push(settings: ExchangeSettings) -> Owned:
    """Return the exchange in which servers own the shards. Raises ConfigError for more servers than ranks, or, when it
    is bound, than parameters."""
    config, clip_norm, notes = settings.config, settings.clip_norm, []
    roles, header = roles_of(settings.transport.size, config)
    if config.overlap == FORWARD and clip_norm is not None:
        notes = [
            "with --overlap forward servers send buckets back when all gradients have arrived: only then is "
            f"the factor of --clip-norm {clip_norm:g} known"
        ]

    def divide(arena: Arena, optimizer: Optimizer) -> tuple[Ownership, list[str]]:
        shards, load = server_shards(settings, arena, len(roles.servers), whole=optimizer.layerwise)
        return shards, [load, *notes]

    facts = ExchangeFacts(
        name="server", header=header, roles=roles, exact=True, state_is_local=False, all_reduces=False
    )
    return Owned(settings, facts, divide)
