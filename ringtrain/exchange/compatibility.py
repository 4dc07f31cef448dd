"""The table of options that go together. It checks a configuration.

The rules of a strategy are made from its row in :data:`ringtrain.exchange.catalogue.STRATEGIES`. Conditions on the
model, the data, the ranks or the machine are checked where these are known.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ringtrain.allreduce.catalogue import AUTO, check_algorithm
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.collectives.algorithms.canonical import NAME as CANONICAL
from ringtrain.collectives.catalogue import FLAT
from ringtrain.config.option import as_flag
from ringtrain.config.record import TrainConfig, config_fields
from ringtrain.errors import ConfigError, nearest
from ringtrain.exchange import compatibility_texts as texts
from ringtrain.exchange.catalogue import DATA, STRATEGIES, Strategy
from ringtrain.ops.precision import HALVES

ON, OFF, UNSET = (True,), (False,), (None,)
DEFAULTS = TrainConfig().values()
TF32, BFLOAT16, GHOST = "--precision tf32", "--precision bfloat16", "--batch-norm ghost:SIZE"
# Options that a strategy may refuse: a field of its row, the option, the refused values, and a value that always goes.
OF_STRATEGIES = (
    ("wire", "wire", None, None),
    ("compress", "compress", None, None),
    ("hybrid", "fc", ("hybrid",), None),
    ("pipeline", "fc", ("pipeline",), None),
    ("tuning", "tuning", None, None),
    ("batch_norm_sync", "batch_norm", ("sync",), None),
    ("activations", "precision", HALVES, TF32),
    ("loss_scale", "precision", ("float16",), BFLOAT16),
    ("reproducible", "reproducible", None, None),
    ("check_replicas", "check_replicas", bool, None),
    ("ema", "ema", None, None),
)


@dataclass(frozen=True, slots=True)
class Rule:
    """An option needs certain values of another option.

    values:  the values of ``option`` that have this need, or a test for them; None: all but its default
    accepts: the values of ``other`` that satisfy it; None: all but its default
    why:     the reason, or a reason for each other value; None: nothing else uses the option
    also:    as typed, another value of ``option`` without this need
    where:   (option, value): only configurations with this value have the rule
    """

    option: str
    values: tuple | Callable | None
    other: str
    accepts: tuple | None
    why: str | Mapping[object, str] | None = None
    also: str | None = None
    where: tuple[str, object] | None = None

    def refuses(self, values: Mapping) -> bool:
        """Return whether a run with these values of its options is refused."""
        applies = self.where is None or values[self.where[0]] == self.where[1]
        return (
            applies and _is_among(values, self.option, self.values) and not _is_among(values, self.other, self.accepts)
        )

    def sentence(self, values: Mapping) -> str:
        """Return the refusal of these values."""
        option, other = (_typed(name, values[name]) for name in (self.option, self.other))
        if self.why is None:
            users = self._accepted()
            return f"{option} is used by {users} alone; this run uses {other}: leave it out, or use {users}"
        why = (self.why if isinstance(self.why, str) else self.why[values[self.other]]).format(other=other)
        instead = ", or ".join(filter(None, [self.also, self._accepted()]))
        if not instead:
            return f"{option} {why}. Leave one of the two out"
        return f"{option} {why}. Use {instead}, or leave {option} out"

    def _accepted(self) -> str:
        """ "--sync allreduce, sharded or delayed"; nothing where the other option is to be left out"""
        if self.accepts is OFF or self.accepts is UNSET:
            return ""
        if self.accepts is ON or self.accepts is None:
            return as_flag(self.other)
        *others, last = map(str, self.accepts)
        return f"{as_flag(self.other)} {' or '.join(filter(None, [', '.join(others), last]))}"


def _owned() -> Iterator[Rule]:
    for option in dict.fromkeys(name for strategy in STRATEGIES.values() for name in strategy.options):
        users = tuple(name for name, strategy in STRATEGIES.items() if option in strategy.options)
        yield Rule(option, None, "sync", users)
    for name, spec in config_fields().items():
        if spec.metadata["used_by"]:
            yield Rule(name, None, *spec.metadata["used_by"])


def _of_strategies() -> Iterator[Rule]:
    for field, option, values, also in OF_STRATEGIES:
        reasons = {name: getattr(strategy, field) for name, strategy in STRATEGIES.items()}
        why: dict[object, str] = {name: reason for name, reason in reasons.items() if reason}
        yield Rule(option, values, "sync", tuple(name for name in STRATEGIES if name not in why), why, also)
    for name, strategy in STRATEGIES.items():
        for option in ("overlap", "algorithm"):
            only = getattr(strategy, option)
            if only is not None:
                yield Rule("sync", (name,), option, only.values, only.why)


def _needs(option: str, values: tuple | None = None, also: str | None = None, /, **others: tuple) -> Iterator[Rule]:
    """Yield the rule of each other option: the values that ``option`` accepts, and why."""
    return (Rule(option, values, other, accepts, why, also) for other, (accepts, why) in others.items())


OTHER_RULES = (
    Rule("loss_scale", None, "precision", ("float16",)),
    Rule("shards", None, "reproducible", ON),
    Rule("algorithm", (CANONICAL,), "reproducible", ON),
    Rule("tuning", None, "algorithm", (AUTO,)),
    Rule("precision", None, "device", ("cuda",)),
    Rule("mpi_cuda", None, "device", ("cuda",)),
    Rule("ops", None, "device", ("cpu",)),
    # parameter servers
    Rule("servers", None, "asynchronous", ON, texts.SERVERS, where=("sync", "averaging")),
    Rule("dedicated", None, "asynchronous", ON, texts.SERVERS, where=("sync", "averaging")),
    *(
        Rule(name, None, "asynchronous", OFF, texts.AVERAGED_TOGETHER)
        for name in ("average_from", "fragments", "average_delay", "mixing", "centre_rate")
    ),
    Rule("outer_momentum", None, "asynchronous", OFF, texts.AVERAGED_TOGETHER, "--quorum", ("quorum", None)),
    Rule("outer_lr", None, "asynchronous", OFF, texts.AVERAGED_TOGETHER, "--quorum", ("quorum", None)),
    Rule("grace_s", None, "quorum", None),
    Rule("mixing", None, "centre_rate", (0.0,), "keeps a share of own weights; {other} keeps the rest of its rate"),
    Rule("compress", None, "asynchronous", OFF, texts.COMPRESS_SERVERS),
    Rule("wire", None, "asynchronous", OFF, texts.WIRE),
    Rule("asynchronous", ON, "algorithm", (AUTO,), texts.ALGORITHM_SERVERS),
    Rule("tuning", None, "asynchronous", OFF, texts.TUNING_SERVERS),
    Rule("asynchronous", ON, "staleness", (0,), "puts no bound on how far ranks are apart; {other} is one"),
    Rule("server_levels", None, "asynchronous", OFF, texts.LEVELS),
    Rule("server_levels", None, "staleness", (0,), texts.LEVELS),
    Rule("check_replicas", bool, "asynchronous", OFF, texts.CHECK_REPLICAS),
    Rule("check_replicas", bool, "staleness", (0,), texts.CHECK_REPLICAS),
    Rule("ema", None, "asynchronous", OFF, texts.AVERAGE_APART),
    Rule("ema", None, "staleness", (0,), texts.AVERAGE_APART),
    # compression
    Rule("residual_decay", None, "error_feedback", ("ef",), "is of what was not sent; {other} keeps no residual"),
    *_needs(
        "compress",
        fc=((DATA,), "keeps the rest of each gradient for later; with {other} ranks do not exchange all gradients"),
        overlap=(
            ("none", "backward"),
            "exchanges in two rounds, in one order on all ranks; {other} allows other orders",
        ),
        wire=((NONE,), "sends less by itself; {other} would round it, and lose the rounding error"),
    ),
    *_needs(
        "precision",
        ("float16",),
        BFLOAT16,
        compress=((NONE,), "scales the loss; {other} keeps parts of gradients that an earlier scale was applied to"),
    ),
    # sums in one order
    *_needs(
        "reproducible",
        ON,
        fc=(
            (DATA,),
            "adds gradients in one order at any number of ranks; with {other} the order depends on that number",
        ),
        wire=((NONE,), "gives the same bits at any number of ranks; {other} rounds sums that depend on that number"),
        compress=(
            (NONE,),
            "gives the same bits at any number of ranks; {other} drops parts that depend on that number",
        ),
        accumulate=((1,), "makes one micro-batch of each shard, smaller with more --shards; {other} cuts it again"),
    ),
    *_needs(
        "batch_norm",
        ("sync",),
        GHOST,
        reproducible=(OFF, "sums statistics in an order that depends on the number of ranks; {other} needs one order"),
    ),
    *_needs(
        "ops",
        reproducible=(OFF, "multiplies by NumPy's BLAS, whose order of sums is not fixed; {other} needs one order"),
    ),
    # statistics of the whole batch
    *_needs(
        "batch_norm",
        ("sync",),
        accumulate=(
            (1,),
            "takes statistics over the whole batch; {other} would normalise parts of it one after another",
        ),
        fc=((DATA, "hybrid"), "needs all ranks in the same layer; with {other} they are in different ones"),
        recompute=(OFF, "exchanges statistics in every layer; {other} would exchange them again in backward"),
    ),
    # fully connected layers
    *_needs(
        "fc",
        ("hybrid",),
        asynchronous=(OFF, "needs all ranks in every pass of one batch; with {other} they are in different batches"),
        staleness=((0,), texts.HYBRID_APART),
    ),
    *_needs(
        "fc",
        ("pipeline",),
        algorithm=((AUTO, *FLAT), "sums over some of the ranks; {other} takes all of them"),
        tuning=(UNSET, "sums over some of the ranks; {other} holds times of all-reduces over all of them"),
    ),
    Rule("precision", HALVES, "fc", (DATA,), texts.HALVED_ACTIVATIONS, TF32),
    # images
    Rule("random_resized_crop", None, "augment", ON, "crops at random; {other} asks for no random crops"),
    *(
        rule
        for option in ("mixup", "cutmix")
        for rule in _needs(
            option,
            loss=(("ce",), "trains on two labels of an example, by their shares; {other} has no shares of labels"),
            fc=((DATA,), texts.MIXED_ELSEWHERE),
            sync=(tuple(name for name in STRATEGIES if name != "master"), texts.MIXED_ELSEWHERE),
        )
    ),
    # whole matrices
    Rule("optimizer", ("muon",), "sync", ("allreduce", "server"), texts.MATRICES, where=("sync", "sharded")),
    Rule("optimizer", ("muon",), "fc", (DATA,), texts.MATRICES),
    # the rest
    *_needs(
        "elastic",
        mpi_cuda=(
            (AUTO, "staged"),
            "needs messages that outlive a rank; {other} moves device memory by UCX, which does not",
        ),
    ),
    Rule("wire", None, "dtype", ("float32",), "carries float32 rounded; {other} is another type"),
    Rule("precision", None, "dtype", ("float32",), "computes with fewer bits than {other}, which is for checks"),
    Rule("synthetic", ON, "data", UNSET, texts.RANDOM_IMAGES),
    Rule("synthetic", ON, "test_data", UNSET, texts.RANDOM_IMAGES),
)


def _rules() -> list[Rule]:
    return [*_owned(), *_of_strategies(), *OTHER_RULES]


RULES = _rules()


def add_strategy(name: str, strategy: Strategy) -> None:
    """Add a strategy of a plug-in, with its rules."""
    STRATEGIES[name] = strategy
    RULES[:] = _rules()


def check_options(config: TrainConfig) -> None:
    """Raises ConfigError for an unknown strategy and for options that do not go together, UsageError for an unknown
    algorithm."""
    exchange = config.exchange
    if exchange.sync not in STRATEGIES:
        raise ConfigError(
            f"unknown strategy --sync {exchange.sync!r} (one of your own needs --plugin FILE.py): "
            f"{nearest(exchange.sync, STRATEGIES)}"
        )
    if exchange.algorithm != CANONICAL:
        check_algorithm(exchange.algorithm, exchange.wire != NONE)
    for sentence in refusals(config):
        raise ConfigError(sentence)


def refusals(config: TrainConfig) -> Iterator[str]:
    """Yield the sentence of each rule that refuses the configuration."""
    values = config.values()
    return (rule.sentence(values) for rule in RULES if rule.refuses(values))


def without_former(table: Mapping, options: Mapping) -> dict:
    """Return the options of a run that continues, without those that belong to a strategy or a placement of layers that
    ``options`` replaces."""
    replaced = [other for other in ("sync", "fc") if options.get(other, table.get(other)) != table.get(other)]
    former = {rule.option for rule in RULES if rule.why is None and rule.other in replaced}
    return {name: value for name, value in table.items() if name not in former}


def _is_among(options: Mapping, name: str, values: tuple | Callable | None) -> bool:
    value = options[name]
    if callable(values):
        return values(value)
    return value in values if values is not None else value != DEFAULTS[name]


def _typed(name: str, value) -> str:
    """Return an option as a user types it; "no --trace" for one that is not given."""
    if value is False and DEFAULTS[name]:
        return as_flag(f"no_{name}")
    if value is None or isinstance(value, bool):
        return as_flag(name) if value else f"no {as_flag(name)}"
    return f"{as_flag(name)} {value:g}" if isinstance(value, float) else f"{as_flag(name)} {value}"
