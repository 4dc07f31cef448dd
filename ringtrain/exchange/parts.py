"""A strategy as six parts: what travels, when, with whom, how, what is done with the result, how far apart ranks are.

The rules of options that go together, the plan and front ends ask these; few of them ask for a strategy by its name. A
configuration has its parts from :data:`PARTS`, by the name of its strategy; a new value of a part is set there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ringtrain.allreduce.wire_formats import NONE, WIRES
from ringtrain.config.exchange import ExchangeConfig

GRADIENT, CHANGE, WEIGHTS = "gradient", "change", "weights"  # what travels
ALL, OWNERS, PARTNER, ROOT = "all", "owners", "partner", "root"  # with whom
EXACT = "exact"  # how; else the name of a wire format or of a compression
OPTIMIZER, SUM, MEAN = "optimizer", "sum", "mean"  # what is done with the result
OUTER_STEP, CENTRE = "outer step", "elastic centre"
EACH_RANK = 0  # the number of owners where every rank owns a slice
DATA, HYBRID, PIPELINE = "data", "hybrid", "pipeline"  # placement of fully connected layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The six parts of a configuration."""

    # what ranks send: ``gradient``; ``change``, of the weights since the period began; ``weights``
    travels: str = GRADIENT
    every: int = 1  # iterations from one exchange to the next
    fragments: int = 1  # parts of the weights that take turns, each every so many iterations
    # iterations between a gradient and the update by it, or between a change's departure and its mean's arrival
    delay: int = 0
    begins: int = 0  # iterations of all-reduce before the first period
    # with whom: ``all``; ``owners`` of parts, who send weights back; ``partner``, one other rank; ``root``, an
    # owner of everything that computes the loss of all
    partners: str = ALL
    partner_count: int = 1  # in one exchange, where partners are not all
    # the number of owners; EACH_RANK: every rank owns a slice, and sums travel by the halves of an all-reduce
    owners: int = EACH_RANK
    how: str = EXACT  # ``exact``, the name of a wire format, or that of a compression
    # what is done with the result: ``optimizer``, it updates by the sum; ``sum``, owners add changes as they
    # arrive; ``mean``, it becomes the weights; ``outer step``, a step from the last mean towards it; ``elastic
    # centre``, ranks and a centre move to one another
    then: str = OPTIMIZER
    averages_state: bool = False  # whether the mean is of the optimizer's state, too
    # iterations that a rank may be ahead of the slowest; 0: all are together; None: there is no bound
    apart: int | None = 0
    placement: str = DATA  # of fully connected layers: ``data``, ``hybrid``, ``pipeline``

    @property
    def together(self) -> bool:
        """Whether all ranks begin each iteration, or each period, together."""
        return self.apart == 0

    @property
    def sums_gradients(self) -> bool:
        """Whether each update is by the sum of all ranks' gradients."""
        return self.travels == GRADIENT

    @property
    def equal_weights(self) -> bool:
        """Whether all ranks hold the same weights in each pass."""
        return self.sums_gradients and self.together

    @property
    def averages(self) -> bool:
        """Whether each rank has weights of its own, of which a mean is made."""
        return self.then in (MEAN, OUTER_STEP, CENTRE)

    @property
    def averages_alone(self) -> bool:
        """Whether owners add each rank's change as it comes."""
        return self.partners == OWNERS and self.then == MEAN

    @property
    def has_servers(self) -> bool:
        """Whether some ranks own the weights, and others send to them."""
        return self.partners == OWNERS and self.owners != EACH_RANK

    @property
    def in_halves(self) -> bool:
        """Whether sums travel by a reduce-scatter, and weights by an all-gather."""
        return self.partners == OWNERS and self.owners == EACH_RANK

    @property
    def sends_weights(self) -> bool:
        """Whether a rank sends weights: its own, or those that it owns."""
        return self.travels == WEIGHTS or self.partners != ALL

    @property
    def all_reduces(self) -> bool:
        """Whether all ranks make whole all-reduces, in an exchange or in an evaluation."""
        return self.partners in (ALL, PARTNER) and self.placement != PIPELINE

    @property
    def collective_passes(self) -> bool:
        """Whether all ranks are in the same pass, in every layer, with equal weights."""
        collective = self.partners == ALL or self.in_halves
        return self.equal_weights and collective and self.placement != PIPELINE

    @property
    def updates_alike(self) -> bool:
        """Whether all ranks make each update, or none does: by the gradients of its own iteration alone."""
        of_iteration = self.delay == 0 and self.how in (EXACT, *WIRES)
        return self.equal_weights and (self.partners == ALL or self.in_halves) and of_iteration

    @property
    def late_gradients(self) -> bool:
        """Whether an update is by gradients of an earlier iteration."""
        return self.sums_gradients and self.delay > 0

    @property
    def one_sum(self) -> bool:
        """Whether every rank makes each update of all weights itself, by one exact sum."""
        return self.equal_weights and self.sums_whole and not self.delay and self.how == EXACT

    @property
    def sums_whole(self) -> bool:
        """Whether all ranks get the sums of whole parameters, of all of them."""
        return self.partners == ALL and self.placement == DATA

    @property
    def own_loss(self) -> bool:
        """Whether each rank computes the loss of its own examples."""
        return self.partners != ROOT and self.placement == DATA

    @property
    def whole_parameters(self) -> bool:
        """Whether no parameter is divided among ranks."""
        return not self.in_halves and self.placement == DATA


def parts_of(config: ExchangeConfig) -> Parts:
    """Return the parts of a configuration whose strategy is known."""
    return PARTS[config.strategy](config)


def _parts(config: ExchangeConfig, **parts) -> Parts:
    """Return the parts of a strategy, with those that do not depend on it."""
    how = next((name for name in (config.compress, config.wire) if name != NONE), EXACT)
    return Parts(how=how, placement=config.fc, **parts)


def _of_server(config: ExchangeConfig) -> Parts:
    """Servers update by sums of gradients, or add changes of ranks that are apart."""
    parts = partial(_parts, config, partners=OWNERS, owners=config.servers)
    if not config.asynchronous and not config.staleness:
        return parts()
    return parts(travels=CHANGE, then=SUM, apart=None if config.asynchronous else config.staleness)


def _of_averaging(config: ExchangeConfig) -> Parts:
    """All ranks average weights, or their changes where these are compressed; or servers add changes on arrival."""
    parts = partial(_parts, config, every=config.average_every)
    if config.asynchronous:
        then = MEAN if config.quorum is None else OUTER_STEP
        return parts(travels=CHANGE, partners=OWNERS, owners=config.servers, then=then, apart=None)
    whole, delay = config.compress == config.wire == NONE, config.average_delay
    changes = not whole or delay or config.mixing or config.centre_rate or config.fragments > 1
    parts = partial(parts, begins=config.average_from, averages_state=config.average_momentum == "average")
    then = CENTRE if config.centre_rate else OUTER_STEP if has_outer_step(config) else MEAN
    return parts(travels=CHANGE if changes else WEIGHTS, fragments=config.fragments, delay=delay, then=then)


def _of_gossip(config: ExchangeConfig) -> Parts:
    parts = partial(_parts, config, every=config.gossip_every, partners=PARTNER, apart=config.gossip_max_lag)
    count = 2 if config.gossip_graph == "ring" else 1
    return parts(travels=WEIGHTS, partner_count=count, then=OUTER_STEP if has_outer_step(config) else MEAN)


def has_outer_step(config: ExchangeConfig) -> bool:
    """Whether the step towards a mean is another than onto it."""
    return (config.outer_momentum, config.outer_lr) != (0.0, 1.0)


PARTS: dict[str, Callable[[ExchangeConfig], Parts]] = {
    "allreduce": _parts,
    "delayed": partial(_parts, delay=1),
    "sharded": partial(_parts, partners=OWNERS),
    "averaging": _of_averaging,
    "gossip": _of_gossip,
    "master": partial(_parts, partners=ROOT, owners=1),
    "server": _of_server,
}
