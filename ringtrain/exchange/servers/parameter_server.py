"""Servers own shards of the weights: workers push gradients or changes of weights to them, and pull weights.

The first ``--servers`` ranks serve. All own the same number of elements, or whole parameters if the optimizer needs
their norms. Servers are workers too, unless they are dedicated. The staleness K decides what workers push:

    K = 0             gradients; the server updates when all workers have pushed (:mod:`.gradient_push`)
    K > 0, or no K    changes of weights; the server adds them on arrival (:mod:`.change_push`)

With ``--asynchronous``, without a K, no worker waits for another. Bytes: a worker sends n, and a server n/S to each
worker: the server's link is the bottleneck.

Source: Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014.
"""

from abc import abstractmethod
from dataclasses import replace

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, Roles
from ringtrain.exchange.buckets.deferred_update import BACKWARD, FORWARD
from ringtrain.exchange.servers.shards import Shards, format_load, format_servers, roles_of
from ringtrain.exchange.servers.staleness import staleness_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.memory.arena import Arena
from ringtrain.optim.optimizers import Optimizer


class ParameterServer(Exchange):
    """Divides the weights among servers. Raises ConfigError for more servers than ranks, or than parameters.

    updates_at_owner: whether servers have the optimizer, and not workers
    """

    updates_at_owner: bool

    def __init__(self, settings: ExchangeSettings):
        # Messages of a device leave when they are tested, which no layer does that waits for a sum of statistics.
        held_back = settings.config.overlap == FORWARD and settings.batch_statistics and settings.ops.records
        if held_back:
            settings = settings.with_options(overlap=BACKWARD)
        note = (
            "--overlap forward is backward here: on a device, layers that sum statistics over ranks (--batch-norm "
            "sync) would hold the servers' weights back"
        )
        self._notes = [note] if held_back else []
        self._settings, self._ops, config = settings, settings.ops, settings.config
        staleness = staleness_of(config)
        self._roles = roles = roles_of(settings.transport.size, config.servers, config.dedicated)
        self.facts = ExchangeFacts(
            name=config.sync,
            header=_header(config, roles, staleness),
            roles=roles,
            exact=self.updates_at_owner,
            state_is_local=False,
            max_iteration_lag=staleness + 1 if staleness else 0,
            dynamic_batches=config.asynchronous,
            all_reduces=False,
        )

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        self._arena = arena
        whole_parameters = self.updates_at_owner and optimizer.layerwise
        shards = Shards(self._settings, arena, len(self._roles.servers), whole_parameters)
        self._update, notes = self._bind(shards, optimizer)
        self.rehearsed = [self._update]
        self.owned_state = OwnedState(self._update, self.synchronize, gather=self._gather)
        notes = [format_load(shards.parts, arena.weights.dtype.itemsize), *notes, *self._notes]
        state_bytes = self._update.nbytes if self.updates_at_owner else None
        self.facts = replace(self.facts, notes=notes, state_bytes=state_bytes)

    @abstractmethod
    def _bind(self, shards: Shards, optimizer: Optimizer) -> tuple[OwnedUpdate, list[str]]:
        """Prepare the messages; return the update, and notes."""

    @abstractmethod
    def _gather(self) -> dict:
        """Return the optimizer's whole state. Collective."""


def _header(config: ExchangeConfig, roles: Roles, staleness: int | None) -> str:
    servers = format_servers(roles, config.dedicated)
    if staleness == 0:
        return f"{servers}, heads of nodes first" if config.server_levels == 2 else servers
    terms = f"{servers}, asynchronous"
    if staleness is not None:
        terms = f"{servers}, staleness {staleness}"
    averages = config.sync == "averaging" and config.average_every > 1
    return f"{terms}, every {config.average_every}" if averages else terms
