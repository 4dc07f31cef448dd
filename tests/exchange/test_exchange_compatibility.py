"""Which options go together: that the table is whole, and that it refuses these combinations and no others."""

import re
from collections.abc import Iterator
from itertools import chain, combinations, product

import pytest

from ringtrain.config.presets import PRESETS
from ringtrain.config.record import TrainConfig, config_fields, make_config
from ringtrain.errors import ConfigError, UsageError, nearest
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.exchange.compatibility import BY_SYNONYM, DEFAULTS, RULES, Rule, check_options, refusals, used_by
from ringtrain.exchange.compression.error_feedback import METHODS
from ringtrain.exchange.parts import parts_of
from tests.says import says

# Every value is another than the default.
VALUES = {
    "sync": ("delayed", "sharded", "averaging", "gossip", "master", "server"),
    "fc": ("hybrid", "pipeline"),
    "average_momentum": ("keep",),
    "gossip_max_lag": (0,),
    "gossip_graph": ("ring",),
    "algorithm": ("mpi", "mapped", "ring", "star", "recursive-doubling", "hierarchical", "canonical"),
    "tuning": ("t.json",),
    "wire": ("float16",),
    "compress": ("top-k", "powersgd", "quantise", "sign"),
    "compress_chunk": (4096,),
    "overlap": ("none", "forward"),
    "check_replicas": (0, 5),
    "elastic": ("shrink",),
    "device": ("cuda",),
    "precision": ("tf32", "bfloat16", "float16"),
    "mpi_cuda": ("direct", "staged"),
    "ops": ("reference",),
    "dtype": ("float64",),
    "loss": ("mse", "huber"),
    "optimizer": ("lars", "lamb", "adam", "muon"),
    "adjust_lr": ("original",),
    "ns_steps": (3,),
    "lr_policy": ("cosine",),
    "batch_norm": ("sync", "ghost:8"),
    "augment": (False,),
    "random_resized_crop": ("0.1:1",),
    **dict.fromkeys(("data", "test_data"), ("d.h5",)),
    **dict.fromkeys(("dedicated", "asynchronous", "reproducible"), (True,)),
    **dict.fromkeys(("recompute", "synthetic"), (True,)),
    **dict.fromkeys(("fc_ranks", "servers", "staleness", "compress_rank", "accumulate"), (2,)),
    **dict.fromkeys(("fragments", "average_delay"), (2,)),
    **dict.fromkeys(
        ("average_every", "average_from", "gossip_every", "compress_from", "compress_bits", "shards", "quorum"), (4,)
    ),
    **dict.fromkeys(
        ("ema", "outer_momentum", "outer_lr", "compress_ratio", "residual_decay", "label_smoothing"),
        (0.5,),
    ),
    **dict.fromkeys(("mixing", "centre_rate"), (0.5,)),
    **dict.fromkeys(("mixup", "cutmix", "trust_coefficient", "min_lr", "eps"), (0.25,)),
    **dict.fromkeys(("loss_scale", "huber_delta", "clip_norm", "grace_s"), (2.0,)),
}
# An option, and those of which it needs one.
NEEDS = {
    "fc_ranks": "fc=pipeline",
    **dict.fromkeys(
        (
            *("average_every", "average_momentum", "average_from", "quorum"),
            *("fragments", "average_delay", "mixing", "centre_rate"),
        ),
        "sync=averaging",
    ),
    **dict.fromkeys(("outer_momentum", "outer_lr"), "sync=averaging sync=gossip"),
    "staleness": "sync=server",
    **dict.fromkeys(("servers", "dedicated", "asynchronous"), "sync=server sync=averaging"),
    "grace_s": "quorum",
    **dict.fromkeys(("gossip_max_lag", "gossip_graph", "gossip_every"), "sync=gossip"),
    **dict.fromkeys(("compress_ratio", "compress_chunk"), "compress=top-k"),
    "compress_bits": "compress=quantise compress=top-k",
    "compress_rank": "compress=powersgd",
    **dict.fromkeys(("compress_from", "residual_decay"), "compress"),
    "shards": "reproducible",
    "algorithm=canonical": "reproducible",
    "precision": "device",
    "mpi_cuda": "device",
    "loss_scale": "precision=float16",
    "huber_delta": "loss=huber",
    "trust_coefficient": "optimizer=lars",
    "eps": "optimizer=lamb optimizer=adam optimizer=muon",
    **dict.fromkeys(("adjust_lr", "ns_steps"), "optimizer=muon"),
    "min_lr": "lr_policy",
}
APART = (
    "algorithm tuning wire compress average_from staleness check_replicas=5 ema "
    "fragments average_delay mixing centre_rate"
)
# An option, and those that are refused beside it.
REFUSED = {
    "sync=delayed": "fc overlap=none precision=float16 reproducible",
    "sync=sharded": "algorithm=mpi algorithm=mapped algorithm=recursive-doubling algorithm=hierarchical "
    "algorithm=canonical tuning wire compress reproducible",
    "sync=averaging": "ema fc batch_norm=sync precision=float16 reproducible check_replicas=5",
    "sync=gossip": "ema fc overlap wire compress batch_norm=sync precision=float16 reproducible check_replicas=5",
    "sync=master": "algorithm=mpi algorithm=mapped algorithm=ring algorithm=recursive-doubling "
    "algorithm=hierarchical algorithm=canonical tuning overlap wire compress batch_norm=sync precision=bfloat16 "
    "precision=float16 reproducible",
    "sync=server": "algorithm tuning wire compress batch_norm=sync precision=float16 reproducible",
    **dict.fromkeys(("asynchronous", "quorum"), APART),
    "average_delay": "overlap=none",
    "staleness": "ema check_replicas=5",
    "fc": "sync compress reproducible precision=bfloat16 precision=float16",
    "fc=pipeline": "algorithm=mpi algorithm=mapped algorithm=hierarchical algorithm=canonical tuning batch_norm=sync",
    "compress": "wire overlap=forward precision=float16",
    "wire": "algorithm=mpi algorithm=mapped algorithm=recursive-doubling dtype",
    "tuning": "algorithm",
    "reproducible": "algorithm=mpi algorithm=ring algorithm=star algorithm=recursive-doubling algorithm=hierarchical "
    "wire compress accumulate ops batch_norm=sync",
    "batch_norm=sync": "accumulate recompute",
    "device": "ops",
    "elastic": "mpi_cuda=direct",
    "precision": "dtype",
    "synthetic": "data test_data",
    "label_smoothing": "loss",
    "mixing": "centre_rate",
    "random_resized_crop": "augment",
    "optimizer=muon": "sync=sharded fc",
    **dict.fromkeys(("mixup", "cutmix"), "loss fc sync=master"),
}
# Where options are tried two by two: those that others need.
BESIDE = (
    {},
    {"sync": "averaging"},
    {"sync": "server"},
    {"fc": "pipeline"},
    {"compress": "top-k"},
    {"device": "cuda"},
    {"device": "cuda", "precision": "float16"},
    {"sync": "averaging", "asynchronous": True},
    {"sync": "server", "staleness": 2},
    {"reproducible": True},
)


DELAYED, EASGD = {"sync": "delayed"}, {"sync": "averaging", "asynchronous": True}


def is_refused(flags: dict) -> bool:
    """By the tables above."""
    typed = {*flags, *(f"{name}={value}" for name, value in flags.items())}
    alone = any(option in typed and typed.isdisjoint(needs.split()) for option, needs in NEEDS.items())
    beside = any(option in typed and not typed.isdisjoint(others.split()) for option, others in REFUSED.items())
    # --sync averaging has servers with --asynchronous alone, and an outer step at servers with --quorum alone.
    without = "sync=averaging" in typed and not typed.isdisjoint({"servers", "dedicated"})
    outer = "asynchronous" in typed and not typed.isdisjoint({"outer_momentum", "outer_lr"})
    without &= typed.isdisjoint({"asynchronous", "quorum"})
    return alone or beside or without or (outer and "quorum" not in typed)


def combined(beside: dict):
    """``beside`` with none, one and two further options, each at each of its values."""
    every = [(name, value) for name, values in VALUES.items() if name not in beside for value in values]
    for count in (0, 1, 2):
        for pair in combinations(every, count):
            if len(dict(pair)) == count:
                yield {**beside, **dict(pair)}


def refuses(flags: dict) -> bool:
    try:
        check_options(make_config(**flags))
    except UsageError as error:
        assert error.exit_code == 2
        return True
    return False


@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_these_combinations_are_refused_and_no_others(beside):
    wrong = [flags for flags in combined(beside) if refuses(flags) != is_refused(flags)]
    assert wrong == []


def test_rules_and_users_are_of_options_that_are_there():
    fields = config_fields()
    assert set(VALUES["sync"]) < set(STRATEGIES)
    assert ("data", *VALUES["fc"]) == fields["fc"].metadata["choices"]
    assert {spec.metadata["used_by"] for spec in fields.values()} >= {("compress", tuple(METHODS))}
    named = {name for rule in RULES for name in (*rule.options, *([rule.needs] * isinstance(rule.needs, str)))}
    assert named | {name for option, (other, _) in used_by().items() for name in (option, other)} <= set(fields)


def test_an_unknown_strategy_is_refused_with_the_nearest_name():
    with pytest.raises(
        ConfigError, match=says("--sync", "--plugin", "'shardd'", nearest("shardd", [*STRATEGIES, *PRESETS]))
    ):
        check_options(make_config(sync="shardd"))


def test_a_strategys_name_elsewhere_is_proposed():
    assert set(BY_SYNONYM.values()) <= set(STRATEGIES) and not set(BY_SYNONYM) & {*STRATEGIES, *PRESETS}
    with pytest.raises(ConfigError, match=says("'FSDP'", "did you mean 'sharded'?")):
        check_options(make_config(sync="FSDP"))


def every(name: str) -> tuple:
    return DEFAULTS[name], *VALUES[name]


def others_of(rule: Rule) -> Iterator[dict]:
    """Values of the other option of a rule; of its parts, those of ``BESIDE`` and of every strategy."""
    if isinstance(rule.needs, str):
        return ({rule.needs: value} for value in every(rule.needs))
    compressed = ({"compress": value} for value in VALUES["compress"])
    return chain(BESIDE, ({"sync": name} for name in STRATEGIES), ({"fc": name} for name in VALUES["fc"]), compressed)


def refused_by(rule: Rule) -> Iterator[tuple[TrainConfig, str]]:
    """The runs that a rule refuses, and for which of its options."""
    for option, other in product(rule.options, others_of(rule)):
        for value in VALUES[option] if option not in other else ():
            config = make_config(**{**other, option: value})
            if rule.refused(config.values(), parts_of(config.exchange)) == option:
                yield config, option


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.options[0]}, {rule.why[:30]}")
def test_each_rule_names_both_options_its_reason_and_ways_that_go(rule):
    refused = list(refused_by(rule))
    assert refused
    for config, option in refused:
        sentence = rule.sentence(config, option)
        assert sentence in list(refusals(config))
        with pytest.raises(ConfigError):
            check_options(config)
        flag, typed = f"--{option.replace('_', '-')}", config.values()[option]
        assert sentence.startswith(flag if isinstance(typed, bool) else f"{flag} {typed}")
        before, _, after = rule.why.partition("{other}")
        _, _, rest = sentence.partition(before)
        other, _, ways = rest.partition(f"{after}. ")
        assert other.removeprefix("no ").startswith("--") and ways
        for sync in re.findall(r"--sync ([^-]*?), or ", ways):
            for name in re.split(", | or ", sync):
                assert rule.sentence(config, option) not in list(refusals(config.changed(sync=name)))


@pytest.mark.parametrize("option", used_by())
def test_an_option_without_its_user_is_refused(option):
    other, accepts = used_by()[option]
    accepted = [value for value in every(other) if value != DEFAULTS[other]] if accepts is None else accepts
    for value in every(other):
        config = make_config(**{option: VALUES[option][0], other: value})
        names = [f"--{name.replace('_', '-')}" for name in (option, other)]
        assert (says(*names, "leave it out") in list(refusals(config))) == (value not in accepted)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"sync": "averaging", "dedicated": True}, ["--dedicated", "no --asynchronous", "--asynchronous"]),
        ({"random_resized_crop": "0.1:1", "augment": False}, ["--random-resized-crop 0.1:1", "--no-augment", "--augm"]),
        ({"synthetic": True, "data": "d.h5"}, ["--data d.h5", "--synthetic"]),
        ({"fc": "pipeline", "tuning": "t.json"}, ["--tuning t.json", "--fc pipeline", "--fc data or hybrid"]),
        *(
            (
                {"fc": "pipeline", **flags},
                ["--fc pipeline", f"--sync {flags['sync']}", "Use --sync allreduce, or leave"],
            )
            for flags in ({"sync": "sharded"}, {"sync": "master"}, {"sync": "server", "staleness": 2}, DELAYED, EASGD)
        ),
        ({"shards": 4}, ["--shards 4", "--reproducible", "no --reproducible", "--reproducible"]),
        ({"eps": 1e-3}, ["--eps 0.001", "--optimizer lamb, adamw, adam, rmsprop or muon", "--optimizer sgd"]),
        ({"servers": 2}, ["--servers 2", "--sync averaging or server", "--sync allreduce"]),
        (
            {"device": "cuda", "precision": "float16", "compress": "top-k"},
            ["--precision float16", "--compress top-k", "--precision bfloat16, or --compress none"],
        ),
        (
            {"batch_norm": "sync", "reproducible": True},
            ["--batch-norm sync", "--reproducible", "--batch-norm ghost:SIZE"],
        ),
        ({"sync": "delayed", "overlap": "none"}, ["--overlap none", "--sync delayed", "--overlap backward or forward"]),
        (
            {"sync": "server", "wire": "float16"},
            ["--wire float16", "--sync server", "--sync allreduce, delayed or averaging"],
        ),
        (
            {"sync": "gossip", "batch_norm": "sync"},
            [
                "--batch-norm sync",
                "--sync gossip",
                "--sync allreduce, delayed or sharded",
                "leave --batch-norm sync out",
            ],
        ),
        ({"gossip_max_lag": 4}, ["--gossip-max-lag 4", "--sync gossip", "--sync allreduce", "leave it out"]),
        (
            {"sync": "averaging", "asynchronous": True, "outer_lr": 0.5},
            ["--outer-lr 0.5", "--asynchronous", "Use --quorum, or leave --outer-lr 0.5 out"],
        ),
    ],
)
def test_options_are_named_as_they_are_typed(flags, words):
    with pytest.raises(ConfigError, match="^" + ".*".join(map(re.escape, words))):
        check_options(make_config(**flags))
