"""Which options go together: that the table is whole, and that it refuses these combinations and no others."""

from itertools import combinations

import pytest

from ringtrain.config.record import TrainConfig, config_fields
from ringtrain.errors import ConfigError, UsageError
from ringtrain.exchange import compatibility_texts as texts
from ringtrain.exchange.catalogue import AROUND, DATA, STRATEGIES
from ringtrain.exchange.compatibility import OF_STRATEGIES, OWNED, RULES, check_options, refusals
from ringtrain.exchange.compression.catalogue import METHODS

# Every value is another than the default.
VALUES = {
    "sync": ("delayed", "sharded", "averaging", "gossip", "master", "server"),
    "fc": ("hybrid", "pipeline"),
    "fc_ranks": (2,),
    "fc_in_flight": (3,),
    "fc_update": ("micro-batch",),
    "average_every": (4,),
    "average_momentum": ("keep", "reset"),
    "average_from": (3,),
    "outer_momentum": (0.5,),
    "outer_lr": (0.5,),
    "servers": (2,),
    "dedicated": (True,),
    "server_levels": (2,),
    "staleness": (2,),
    "asynchronous": (True,),
    "gossip_max_lag": (0,),
    "algorithm": ("mpi", "mapped", "ring", "star", "recursive-doubling", "hierarchical", "canonical"),
    "tuning": ("t.json",),
    "wire": ("float16",),
    "compress": ("top-k", "powersgd"),
    "compress_ratio": (0.5,),
    "compress_rank": (2,),
    "compress_from": (5,),
    "reproducible": (True,),
    "shards": (4,),
    "overlap": ("none", "forward"),
    "check_replicas": (0, 5),
    "elastic": ("shrink",),
    "trace": ("t.json",),
    "trace_iterations": ("3:4",),
    "device": ("cuda",),
    "precision": ("tf32", "bfloat16", "float16"),
    "loss_scale": (128.0,),
    "mpi_cuda": ("direct", "staged"),
    "ops": ("reference",),
    "dtype": ("float64",),
    "optimizer": ("lars", "lamb"),
    "trust_coefficient": (0.1,),
    "trust_limit": (2.0,),
    "momentum_correction": (True,),
    "clip_norm": (2.0,),
    "batch_norm": ("sync", "ghost:8"),
    "accumulate": (2,),
    "synthetic": (True,),
    "data": ("d.h5",),
}
# An option, and those of which it needs one.
NEEDS = {
    **dict.fromkeys(("fc_ranks", "fc_in_flight", "fc_update"), "fc=pipeline"),
    **dict.fromkeys(
        ("average_every", "average_momentum", "average_from", "outer_momentum", "outer_lr"), "sync=averaging"
    ),
    **dict.fromkeys(("server_levels", "staleness"), "sync=server"),
    **dict.fromkeys(("servers", "dedicated", "asynchronous"), "sync=server sync=averaging"),
    "gossip_max_lag": "sync=gossip",
    "compress_ratio": "compress=top-k",
    "compress_rank": "compress=powersgd",
    "compress_from": "compress",
    "shards": "reproducible",
    "algorithm=canonical": "reproducible",
    "trace_iterations": "trace",
    "precision": "device",
    "mpi_cuda": "device",
    "loss_scale": "precision=float16",
    "trust_coefficient": "optimizer=lars",
    "momentum_correction": "optimizer=lars",
    "trust_limit": "optimizer=lars optimizer=lamb",
}
# An option, and those that are refused beside it.
REFUSED = {
    "sync=delayed": "fc overlap=none precision=float16 reproducible",
    "sync=sharded": "fc=pipeline algorithm=mpi algorithm=mapped algorithm=recursive-doubling algorithm=hierarchical "
    "algorithm=canonical tuning wire compress reproducible",
    "sync=averaging": "fc wire compress batch_norm=sync precision=float16 reproducible check_replicas=5",
    "sync=gossip": "fc overlap wire compress batch_norm=sync precision=float16 reproducible check_replicas=5",
    "sync=master": "fc algorithm=mpi algorithm=mapped algorithm=ring algorithm=recursive-doubling "
    "algorithm=hierarchical algorithm=canonical tuning overlap wire compress batch_norm=sync precision=bfloat16 "
    "precision=float16 reproducible",
    "sync=server": "fc algorithm tuning wire compress batch_norm=sync precision=float16 reproducible",
    "asynchronous": "algorithm tuning average_from average_momentum=reset outer_momentum outer_lr staleness "
    "server_levels check_replicas=5 elastic",
    "staleness": "server_levels check_replicas=5",
    "fc": "compress reproducible precision=bfloat16 precision=float16",
    "fc=pipeline": "algorithm=mpi algorithm=mapped algorithm=hierarchical algorithm=canonical tuning batch_norm=sync "
    "overlap=forward",
    "fc_update": "clip_norm",
    "compress": "wire overlap=forward precision=float16",
    "wire": "algorithm=mpi algorithm=mapped algorithm=recursive-doubling dtype",
    "tuning": "algorithm",
    "reproducible": "wire compress accumulate ops batch_norm=sync",
    "batch_norm=sync": "accumulate",
    "device": "ops",
    "elastic": "mpi_cuda=direct",
    "precision": "dtype",
    "synthetic": "data",
}
# Where options are tried two by two: those that others need.
BESIDE = (
    {},
    {"sync": "averaging"},
    {"sync": "server"},
    {"fc": "pipeline"},
    {"device": "cuda"},
    {"device": "cuda", "precision": "float16"},
    {"sync": "averaging", "asynchronous": True},
    {"sync": "server", "staleness": 2},
    {"reproducible": True},
)


def named(flags: dict) -> set[str]:
    return {*flags, *(f"{name}={value}" for name, value in flags.items())}


def is_refused(flags: dict) -> bool:
    """By the tables above."""
    given = named(flags)
    alone = any(option in given and given.isdisjoint(needs.split()) for option, needs in NEEDS.items())
    beside = any(option in given and not given.isdisjoint(others.split()) for option, others in REFUSED.items())
    # Servers of --sync averaging are those of --asynchronous.
    without = "sync=averaging" in given and not given.isdisjoint({"servers", "dedicated"})
    return alone or beside or (without and "asynchronous" not in given)


def combined(beside: dict):
    """``beside`` with none, one and two further options, each at each of its values."""
    every = [(name, value) for name, values in VALUES.items() if name not in beside for value in values]
    for count in (0, 1, 2):
        for pair in combinations(every, count):
            if len(dict(pair)) == count:
                yield {**beside, **dict(pair)}


def refuses(flags: dict) -> bool:
    try:
        check_options(TrainConfig(**flags))
    except UsageError as error:
        assert error.exit_code == 2
        return True
    return False


@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_these_combinations_are_refused_and_no_others(beside):
    wrong = [flags for flags in combined(beside) if refuses(flags) != is_refused(flags)]
    assert wrong == []


def test_every_strategy_has_a_row_and_every_row_is_of_options_that_are_there():
    fields = config_fields()
    assert tuple(STRATEGIES) == fields["sync"].metadata["choices"]
    assert (DATA, *AROUND) == fields["fc"].metadata["choices"]
    assert set(OWNED["compress"]) == set(METHODS)
    assert {rule.option for rule in RULES} | {rule.other for rule in RULES} <= set(fields)


@pytest.mark.parametrize(("field", "option"), [(field, option) for field, option, *_ in OF_STRATEGIES])
def test_a_strategy_that_says_why_not_is_refused_with_that_reason(field, option):
    (rule,) = [rule for rule in RULES if rule.option == option and rule.other == "sync" and _is_of(field, rule)]
    for name, strategy in STRATEGIES.items():
        why = getattr(strategy, field)
        assert (name in rule.accepts) == (why is None)
        if why is not None:
            value = next(value for value in VALUES[option][::-1] if _applies(rule, value))
            told = list(refusals(TrainConfig(sync=name, **{option: value})))
            assert any(why(other=f"--sync {name}") in sentence for sentence in told), (name, told)


def _is_of(field: str, rule) -> bool:
    return rule.why == {name: getattr(each, field) for name, each in STRATEGIES.items() if getattr(each, field)}


def _applies(rule, value) -> bool:
    return rule.values is None or (rule.values(value) if callable(rule.values) else value in rule.values)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"sync": "gossip", "batch_norm": "sync"},
            "--batch-norm sync needs all ranks in every layer with equal weights; --sync gossip does not guarantee "
            "that. Use --sync allreduce, delayed or sharded, or leave --batch-norm sync out",
        ),
        (
            {"gossip_max_lag": 4},
            "--gossip-max-lag 4 is used by --sync gossip alone; this run uses --sync allreduce: leave it out, or use "
            "--sync gossip",
        ),
        (
            {"sync": "averaging", "asynchronous": True, "outer_lr": 0.5},
            "--outer-lr 0.5 applies when all ranks average together; with --asynchronous each rank averages alone. "
            "Leave one of the two out",
        ),
        (
            {"reproducible": True, "accumulate": 2},
            texts.REFUSED(
                option="--reproducible",
                reason=texts.ORDER_SHARDS(other="--accumulate 2"),
                instead="--accumulate 1",
            ),
        ),
        (
            {"trace_iterations": "3:4"},
            texts.UNUSED(option="--trace-iterations 3:4", users="--trace", given="no --trace"),
        ),
    ],
)
def test_a_refusal_in_words(flags, told):
    with pytest.raises(ConfigError) as error:
        check_options(TrainConfig(**flags))
    assert str(error.value) == told
