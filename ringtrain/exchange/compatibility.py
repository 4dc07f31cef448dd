"""The rules of options that go together. They check a configuration.

A rule names an option and what it needs: a property of the strategy's :class:`~ringtrain.exchange.parts.Parts`, or
values of another option. Conditions on the model, the data, the ranks or the machine are checked where these are known.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from ringtrain.allreduce.catalogue import AUTO, check_algorithm
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.collectives.algorithms.canonical import NAME as CANONICAL
from ringtrain.collectives.catalogue import FLAT
from ringtrain.collectives.catalogue import HALVES as IN_HALVES
from ringtrain.collectives.shared_memory import MAPPED
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import as_flag
from ringtrain.config.presets import PRESETS, options_of, setter
from ringtrain.config.record import TrainConfig, config_fields
from ringtrain.errors import ConfigError, nearest
from ringtrain.exchange.catalogue import STRATEGIES, Strategy, own_options
from ringtrain.exchange.parts import PARTNER, PARTS, PIPELINE, ROOT, Parts, parts_of
from ringtrain.exchange.strategies.master import STAR
from ringtrain.ops.precision import HALVES

ON, OFF = (True,), (False,)
DEFAULTS = TrainConfig().values()
TF32, BFLOAT16, GHOST = "--precision tf32", "--precision bfloat16", "--batch-norm ghost:SIZE"
TOGETHER = "applies when all ranks average together; with {other} each rank averages alone"
Needs = Callable[[Parts], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """Some options need something of the strategy's parts, or of another option."""

    options: tuple[str, ...]  # each of these options has the need
    values: tuple | Callable | None  # the values that have it, or a test for them; None: all but the default
    needs: Needs | str  # what the parts must be; or another option
    # the reason: the middle of a sentence, which follows the option as typed and names as ``{other}`` what refuses
    # it
    why: str
    accepts: tuple = ()  # the values of the other option that satisfy it
    also: str = ""  # as typed, another value of the option without this need

    def refused(self, values: Mapping, parts: Parts) -> str | None:
        """Return the first of these options that a run with these values and parts does not go with."""
        needs = self.needs
        if values[needs] in self.accepts if isinstance(needs, str) else needs(parts):
            return None
        return next((name for name in self.options if _is_among(values[name], self.values, DEFAULTS[name])), None)

    def sentence(self, config: TrainConfig, option: str) -> str:
        """Return the refusal of this option."""
        other, accepts = (self.needs, self.accepts) if isinstance(self.needs, str) else _blamed(config, self, option)
        typed, beside = _typed(config, option), _typed(config, other)
        instead = ", or ".join(filter(None, [self.also, _options(other, accepts)]))
        leave = f"Use {instead}, or leave {typed} out" if instead else "Leave one of the two out"
        return f"{typed} {self.why.format(other=beside)}. {leave}"


def _alone(values: Mapping, config: TrainConfig) -> Iterator[str]:
    """Yield the refusal of each option that the strategy, or another option, does not use."""
    for name, (other, accepts) in used_by().items():
        if values[name] != DEFAULTS[name] and not _is_among(values[other], accepts, DEFAULTS[other]):
            yield _unused(config, name, other, accepts)


def used_by() -> dict[str, tuple[str, tuple | None]]:
    """Return, for each option that only some values of another one use, that one and these values."""
    users: dict[str, tuple[str, tuple | None]] = {
        name: spec.metadata["used_by"] for name, spec in config_fields().items() if spec.metadata["used_by"]
    }
    for name in (name for strategy in STRATEGIES.values() for name in strategy.options):
        users[name] = "sync", tuple(user for user, strategy in STRATEGIES.items() if name in strategy.options)
    return users


def _unused(config: TrainConfig, option: str, other: str, accepts: tuple | None) -> str:
    users = _options(other, accepts)
    uses = f"this run uses {_typed(config, other)}"
    return f"{_typed(config, option)} is used by {users} alone; {uses}: leave it out, or use {users}"


def _blamed(config: TrainConfig, rule: Rule, option: str) -> tuple[str, tuple]:
    """Return the option by which a need of the parts is not satisfied, and its values that satisfy it, those with which
    ``option`` goes if there are any. The other options are as they are, or, if several prevent it, left out."""
    assert not isinstance(rule.needs, str)
    without = TrainConfig().changed(**{option: config.values()[option]})
    for base in (config, without):
        for spec in sorted(fields(ExchangeConfig), key=lambda spec: spec.name == "sync"):
            this = base.changed(**{spec.name: getattr(config.exchange, spec.name)})
            if spec.name not in rule.options and not rule.needs(parts_of(this.exchange)):
                tried = {value: base.changed(**{spec.name: value}) for value in _values(spec)}
                values = tuple(value for value, other in tried.items() if rule.needs(parts_of(other.exchange)))
                if values:
                    return spec.name, tuple(value for value in values if _goes(tried[value], option)) or values
    raise AssertionError("all-reduce satisfies every need")


def _goes(config: TrainConfig, option: str) -> bool:
    """Return whether the parts are all that this option needs."""
    values, parts = _by_strategy(config), parts_of(config.exchange)
    return not any(rule.refused(values, parts) == option for rule in RULES if not isinstance(rule.needs, str))


def _values(spec) -> tuple:
    """Return values of an option of the exchange to try."""
    if spec.name == "sync":
        return tuple(STRATEGIES)
    return spec.metadata["choices"] or ((False, True) if isinstance(spec.default, bool) else (spec.default,))


def _options(name: str, values: tuple | None) -> str:
    """ "--sync allreduce, sharded or delayed"; nothing where the option is to be left out"""
    if values is None or values[0] is True:
        return as_flag(name)
    if values[0] is False:
        return ""
    *others, last = map(str, values)
    return f"{as_flag(name)} {' or '.join(filter(None, [', '.join(others), last]))}"


RULES = (
    # with whom
    Rule(("wire",), None, lambda parts: not parts.sends_weights,
         "rounds what ranks send; with {other} that is weights, and rounding would lose small updates"),
    Rule(("compress",), None, lambda parts: parts.sums_whole,
         "needs sums of whole parameters over all ranks, and adds what it leaves out to the next ones; {other} "
         "does not have these of every parameter"),
    Rule(("tuning",), None, lambda parts: parts.all_reduces,
         "holds times of all-reduces over all ranks; {other} runs no such ones"),
    Rule(("algorithm",), lambda name: name not in (AUTO, *IN_HALVES), lambda parts: not parts.in_halves,
         "has no halves; {other} updates between the two halves of an all-reduce",
         also=_options("algorithm", (AUTO, *IN_HALVES))),
    Rule(("algorithm",), lambda name: name != AUTO, lambda parts: not parts.has_servers,
         "is for all-reduces; with {other} ranks exchange with servers only", also=_options("algorithm", (AUTO,))),
    Rule(("algorithm",), lambda name: name not in (AUTO, STAR), lambda parts: parts.partners != ROOT,
         "does not gather gradients on rank 0 and send weights back, as the star and {other} do",
         also=_options("algorithm", (AUTO, STAR))),
    Rule(("algorithm",), lambda name: name not in (AUTO, *FLAT), lambda parts: parts.placement != PIPELINE,
         "takes all ranks; {other} sums over some of them", also=_options("algorithm", (AUTO, *FLAT))),
    Rule(("servers", "dedicated"), None, lambda parts: parts.has_servers,
         "is about servers, which --sync averaging has with --asynchronous alone; this run has {other}"),
    Rule(("optimizer",), ("muon",), lambda parts: parts.whole_parameters,
         "updates whole matrices, and the last layer by adamw; {other} divides matrices or layers among ranks"),
    # when
    Rule(("overlap",), ("none",), lambda parts: parts.delay == 0,
         "forbids messages while layers compute; {other} exchanges while the next iteration computes",
         also=_options("overlap", ("backward", "forward"))),
    Rule(("overlap",), None, lambda parts: parts.partners not in (PARTNER, ROOT),
         "says when gradients travel, and does not change when {other} exchanges",
         also=_options("overlap", ("backward",))),
    # how far apart
    Rule(("precision",), ("float16",), lambda parts: parts.updates_alike,
         "scales the loss, and all ranks skip an update that overflows; with {other} some would not, or would "
         "update by a gradient of an earlier scale",
         also=BFLOAT16),
    Rule(("batch_norm",), ("sync",), lambda parts: parts.collective_passes,
         "needs all ranks in every layer with equal weights; {other} does not guarantee that", also=GHOST),
    Rule(("fc",), None, "sync",
         "is exact: ranks make each update of the other layers alike, by one sum of gradients; {other} does not",
         ("allreduce",)),
    Rule(("check_replicas",), bool, lambda parts: parts.equal_weights,
         "compares the weights of ranks; with {other} they differ while ranks train"),
    Rule(("ema",), None, lambda parts: parts.equal_weights,
         "averages the weights that all ranks share; with {other} each rank has its own"),
    Rule(("average_from", "fragments", "average_delay", "mixing", "centre_rate"), None, "asynchronous", TOGETHER, OFF),
    Rule(("outer_momentum", "outer_lr"), None, lambda parts: not parts.averages_alone, TOGETHER, also="--quorum"),
    Rule(("mixing",), None, "centre_rate", "keeps a share of own weights; {other} keeps the rest of its rate", (0.0,)),
    Rule(("asynchronous",), ON, "staleness", "puts no bound on how far ranks are apart; {other} is one", (0,)),
    # one order of sums
    Rule(("reproducible",), ON, lambda parts: parts.one_sum,
         "updates every rank by one sum of whole gradients, added in one order over all shards; {other} does not"),
    Rule(("reproducible",), ON, "algorithm",
         "adds the shards of a batch in one tree; {other} adds in another order", (AUTO, MAPPED, CANONICAL)),
    Rule(("algorithm",), (CANONICAL,), "reproducible",
         "adds the shards of a batch in one order; with {other} there are none", ON),
    Rule(("reproducible",), ON, "accumulate",
         "makes one micro-batch of each shard, smaller with more --shards; {other} cuts it again", (1,)),
    Rule(("batch_norm",), ("sync",), "reproducible",
         "sums statistics in an order that depends on the number of ranks; {other} needs one order", OFF, GHOST),
    Rule(("ops",), None, "reproducible",
         "multiplies by NumPy's BLAS, whose order of sums is not fixed; {other} needs one order", OFF),
    # where the loss is
    Rule(("precision",), HALVES, lambda parts: parts.own_loss,
         "keeps activations in 16 bits; {other} sends them in float32", also=TF32),
    Rule(("mixup", "cutmix"), None, lambda parts: parts.own_loss,
         "mixes images and labels where they are computed; with {other} another rank has the labels"),
    # other options
    Rule(("compress",), None, "overlap",
         "exchanges in two rounds, in one order on all ranks; {other} allows other orders", ("none", "backward")),
    Rule(("compress",), None, "wire",
         "sends less by itself; {other} would round it, and lose the rounding error", (NONE,)),
    Rule(("batch_norm",), ("sync",), "accumulate",
         "takes statistics over the whole batch; {other} would normalise parts of it one after another", (1,), GHOST),
    Rule(("batch_norm",), ("sync",), "recompute",
         "exchanges statistics in every layer; {other} would exchange them again in backward", OFF, GHOST),
    Rule(("random_resized_crop",), None, "augment", "crops at random; {other} asks for no random crops", ON),
    Rule(("mixup", "cutmix"), None, "loss",
         "trains on two labels of an example, by their shares; {other} has no shares of labels", ("ce",)),
    Rule(("elastic",), None, "mpi_cuda",
         "needs messages that outlive a rank; {other} moves device memory by UCX, which does not", (AUTO, "staged")),
    Rule(("wire", "precision"), None, "dtype", "rounds float32; {other} is another type, for checks", ("float32",)),
    Rule(("data", "test_data"), None, "synthetic", "names a data set; {other} trains on random images", OFF),
)  # fmt: skip


# Names in other programs and papers.
SYNONYMS = {"allreduce": "ddp horovod bsp", "sharded": "zero zero1 fsdp deepspeed", "server": "ps async downpour",
            "averaging": "localsgd local-sgd fedavg", "gossip": "adpsgd ad-psgd dpsgd"}  # fmt: skip
BY_SYNONYM = {name: strategy for strategy, names in SYNONYMS.items() for name in names.split()}


def add_strategy(name: str, strategy: Strategy) -> None:
    """Add a strategy of a plug-in."""
    STRATEGIES[name], PARTS[name] = strategy, strategy.parts


def check_options(config: TrainConfig) -> None:
    """Raises ConfigError for an unknown strategy and for options that do not go together, UsageError for an unknown
    algorithm."""
    exchange = config.exchange
    if exchange.strategy not in STRATEGIES:
        raise ConfigError(
            f"unknown strategy --sync {exchange.sync!r} (one of your own needs --plugin FILE.py): "
            f"{nearest(BY_SYNONYM.get(exchange.sync.lower(), exchange.sync), [*STRATEGIES, *PRESETS])}"
        )
    if exchange.algorithm != CANONICAL:
        check_algorithm(exchange.algorithm, exchange.wire != NONE)
    own_options(exchange)
    for sentence in refusals(config):
        raise ConfigError(sentence)


def refusals(config: TrainConfig) -> Iterator[str]:
    """Yield the sentence of each rule that refuses the configuration, those of unused options first."""
    values, parts = _by_strategy(config), parts_of(config.exchange)
    yield from _alone(values, config)
    for rule in RULES:
        if option := rule.refused(values, parts):
            yield rule.sentence(config, option)


def without_former(table: Mapping, options: Mapping) -> dict:
    """Return the options of a run that continues, without those that belong to a strategy, a preset or a placement of
    layers that ``options`` replaces."""
    replaced = [other for other in ("sync", "fc") if options.get(other, table.get(other)) != table.get(other)]
    former = {name for name, (other, _) in used_by().items() if other in replaced}
    if "sync" in replaced:
        former.update(options_of(table.get("sync")), options_of(options["sync"]), ["plugin_option"])
    return {name: value for name, value in table.items() if name not in former}


def _by_strategy(config: TrainConfig) -> dict:
    """Return the values of the options; of a preset, its strategy."""
    return {**config.values(), "sync": config.exchange.strategy}


def _is_among(value, values: tuple | Callable | None, default) -> bool:
    if callable(values):
        return values(value)
    return value in values if values is not None else value != default


def _typed(config: TrainConfig, name: str) -> str:
    """Return an option as a user types it; "no --trace" for one that is not given; a preset's own with its name."""
    value = config.values()[name]
    return f"{_flag(name, value)}{setter(config.exchange.sync, name, value)}"


def _flag(name: str, value) -> str:
    if value is False and DEFAULTS[name]:
        return as_flag(f"no_{name}")
    if value is None or isinstance(value, bool):
        return as_flag(name) if value else f"no {as_flag(name)}"
    return f"{as_flag(name)} {value:g}" if isinstance(value, float) else f"{as_flag(name)} {value}"
