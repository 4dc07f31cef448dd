"""Servers own shards of the weights: workers push gradients or changes of weights to them, and pull weights.

The first ``--servers`` ranks serve. All own the same number of elements, or whole parameters if the optimizer needs
their norms. Servers are workers too, unless they are dedicated. The staleness K decides what workers push:

    K = 0             gradients; the server updates when all workers have pushed (:mod:`.gradient_push`)
    K > 0, or no K    changes of weights; the server adds them on arrival (:mod:`.change_push`)

With ``--asynchronous``, without a K, no worker waits for another. Bytes: a worker sends n, and a server n/S to each
worker: the server's link is the bottleneck.

Source: Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014.
"""

from dataclasses import replace

from ringtrain.config.record import TrainConfig
from ringtrain.exchange.base import Exchange, ExchangeFacts, OwnedState, Roles
from ringtrain.exchange.buckets.deferred_update import BACKWARD, FORWARD
from ringtrain.exchange.servers.change_push import ChangePush
from ringtrain.exchange.servers.gradient_push import GradientPush
from ringtrain.exchange.servers.ownership import format_load, format_servers, roles_of
from ringtrain.exchange.servers.shards import Shards
from ringtrain.exchange.servers.staleness import staleness_of
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.optim.optimizers import Optimizer


def make_parameter_server(settings: ExchangeSettings) -> "ParameterServer":
    """Return the strategy: workers push changes of weights if the run has a staleness or is asynchronous."""
    stale = settings.config.asynchronous or settings.config.staleness
    return ParameterServer(settings, ChangePush if stale else GradientPush)


class ParameterServer(Exchange):
    """Divides the weights among servers; ``push``: the messages of workers and servers.

    Raises ConfigError for more servers than ranks, or than parameters.
    """

    def __init__(self, settings: ExchangeSettings, push: type[GradientPush] | type[ChangePush]):
        # Messages of a device leave when they are tested, which no layer does that waits for a sum of statistics.
        held_back = settings.config.overlap == FORWARD and settings.config.batch_norm == "sync" and settings.ops.records
        if held_back:
            settings = settings.with_options(overlap=BACKWARD)
        config, self._notes = (
            settings.config,
            [
                (
                    "--overlap forward is backward here: on a device, layers that sum statistics over ranks "
                    "(--batch-norm sync) would hold the servers' weights back"
                )
            ]
            if held_back
            else [],
        )
        self._settings, self._push_type = settings, push
        staleness = staleness_of(config)
        roles = roles_of(settings.transport.size, config.servers, config.dedicated)
        self.facts = ExchangeFacts(
            name=config.sync,
            header=_header(config, roles, staleness),
            roles=roles,
            exact=push.updates_at_owner,
            state_is_local=False,
            max_iteration_lag=staleness + 1 if staleness else 0,
            dynamic_batches=config.asynchronous,
            all_reduces=False,
        )

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        whole_parameters = self._push_type.updates_at_owner and optimizer.layerwise
        shards = Shards(self._settings, arena, len(self.facts.roles.servers), whole_parameters)
        push = self._push = self._push_type(self._settings, self.facts.roles, shards, arena, optimizer)
        self.serving = push.serving
        self.owned_state = OwnedState(push.update, push.synchronize, gather=push.gather)
        self.reducers, self.rehearsed = push.reducers, [push.update]
        self.ready_points, self.wait_points = push.ready_points, push.wait_points
        notes = [format_load(shards.parts, arena.weights.dtype.itemsize), *push.notes, *self._notes]
        self.facts = replace(self.facts, notes=notes, state_bytes=push.state_bytes)

    def denominator(self, local: float, total: float) -> float:
        return total if self._push.updates_at_owner else local

    def before(self, iteration: int, examples: int, total: int) -> None:
        self._push.before(examples, total)

    def before_read(self, span: Span) -> None:
        self._push.before_read(span)

    def grad_ready(self, span: Span) -> None:
        self._push.grad_ready(span)

    def finish(self, iteration: int, lr: float) -> None:
        self._push.finish(lr)

    def synchronize(self) -> None:
        self._push.synchronize()


def _header(config: TrainConfig, roles: Roles, staleness: int | None) -> str:
    servers = format_servers(roles, config.dedicated)
    if staleness == 0:
        return f"{servers}, heads of nodes first" if config.server_levels == 2 else servers
    terms = f"{servers}, asynchronous"
    if staleness is not None:
        terms = f"{servers}, staleness {staleness}"
    averages = config.sync == "averaging" and config.average_every > 1
    return f"{terms}, every {config.average_every}" if averages else terms
