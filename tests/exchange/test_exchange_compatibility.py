"""Which options go together: that the table is whole, and that it refuses these combinations and no others."""

from itertools import combinations

import pytest

from ringtrain.config.record import TrainConfig, config_fields
from ringtrain.errors import ConfigError, UsageError, nearest
from ringtrain.exchange.catalogue import AROUND, DATA, STRATEGIES
from ringtrain.exchange.compatibility import OF_STRATEGIES, OWNED, RULES, check_options, refusals
from ringtrain.exchange.compression.catalogue import METHODS
from tests.fakes.strategies import strategies_with
from tests.says import says

# Every value is another than the default.
VALUES = {
    "sync": ("delayed", "sharded", "averaging", "gossip", "master", "server"),
    "fc": ("hybrid", "pipeline"),
    "fc_ranks": (2,),
    "ema": (0.9,),
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
    "loss": ("mse", "huber"),
    "label_smoothing": (0.1,),
    "huber_delta": (2.0,),
    "optimizer": ("lars", "lamb", "adam"),
    "eps": (1e-6,),
    "lr_policy": ("cosine",),
    "min_lr": (0.001,),
    "trust_coefficient": (0.1,),
    "trust_limit": (2.0,),
    "momentum_correction": (True,),
    "clip_norm": (2.0,),
    "batch_norm": ("sync", "ghost:8"),
    "recompute": (True,),
    "accumulate": (2,),
    "synthetic": (True,),
    "data": ("d.h5",),
    "augment": (False,),
    "random_resized_crop": ("0.1:1",),
    "mixup": (0.2,),
    "cutmix": (1.0,),
    "test_data": ("d.h5",),
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
    "huber_delta": "loss=huber",
    "trust_coefficient": "optimizer=lars",
    "momentum_correction": "optimizer=lars",
    "trust_limit": "optimizer=lars optimizer=lamb",
    "eps": "optimizer=lamb optimizer=adam",
    "min_lr": "lr_policy",
}
# An option, and those that are refused beside it.
REFUSED = {
    "sync=delayed": "fc overlap=none precision=float16 reproducible",
    "sync=sharded": "algorithm=mpi algorithm=mapped algorithm=recursive-doubling algorithm=hierarchical "
    "algorithm=canonical tuning wire compress reproducible",
    "sync=averaging": "ema fc wire compress batch_norm=sync precision=float16 reproducible check_replicas=5",
    "sync=gossip": "ema fc overlap wire compress batch_norm=sync precision=float16 reproducible check_replicas=5",
    "sync=master": "algorithm=mpi algorithm=mapped algorithm=ring algorithm=recursive-doubling "
    "algorithm=hierarchical algorithm=canonical tuning overlap wire compress batch_norm=sync precision=bfloat16 "
    "precision=float16 reproducible",
    "sync=server": "algorithm tuning wire compress batch_norm=sync precision=float16 reproducible",
    "asynchronous": "algorithm tuning average_from average_momentum=reset outer_momentum outer_lr staleness "
    "server_levels check_replicas=5 elastic ema",
    "staleness": "ema server_levels check_replicas=5",
    "fc": "compress reproducible precision=bfloat16 precision=float16",
    "fc=hybrid": "asynchronous staleness",
    "fc=pipeline": "algorithm=mpi algorithm=mapped algorithm=hierarchical algorithm=canonical tuning batch_norm=sync",
    "fc_update": "clip_norm ema",
    "compress": "wire overlap=forward precision=float16",
    "wire": "algorithm=mpi algorithm=mapped algorithm=recursive-doubling dtype",
    "tuning": "algorithm",
    "reproducible": "wire compress accumulate ops batch_norm=sync",
    "batch_norm=sync": "accumulate recompute",
    "device": "ops",
    "elastic": "mpi_cuda=direct",
    "precision": "dtype",
    "synthetic": "data test_data",
    "label_smoothing": "loss",
    "random_resized_crop": "augment",
    **dict.fromkeys(("mixup", "cutmix"), "loss fc sync=master"),
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
    assert set(VALUES["sync"]) < set(STRATEGIES)
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


def test_an_unknown_strategy_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=says("--sync", "--plugin", "'shardd'", nearest("shardd", STRATEGIES))):
        check_options(TrainConfig(sync="shardd"))


def _is_of(field: str, rule) -> bool:
    return rule.why == {name: getattr(each, field) for name, each in STRATEGIES.items() if getattr(each, field)}


def _applies(rule, value) -> bool:
    return rule.values is None or (rule.values(value) if callable(rule.values) else value in rule.values)


CUDA = "--device cuda"
# An option, the other one, why not, how the advice begins ("": to leave one of the two out), and options besides.
REASONS = (
    ("--sync server", "--algorithm ring", says("exchanges", "all-reduces"), "--algorithm auto"),
    ("--asynchronous", "--algorithm ring", says("exchanges", "all-reduces"), "--algorithm auto", "--sync averaging"),
    ("--asynchronous", "--staleness 2", says("puts", "bound"), "--staleness 0", "--sync server"),
    ("--server-levels 2", "--staleness 2", says("sums", "gradients"), "--staleness 0", "--sync server"),
    ("--server-levels 2", "--asynchronous", says("sums", "gradients"), "", "--sync server"),
    ("--tuning t.json", "--sync server", says("all-reduces", "exchange"), "--sync allreduce, delayed"),
    ("--tuning t.json", "--asynchronous", says("all-reduces", "exchange"), "", "--sync averaging"),
    ("--average-from 3", "--asynchronous", says("average", "together"), "", "--sync averaging"),
    ("--outer-lr 0.5", "--asynchronous", says("average", "together"), "", "--sync averaging"),
    ("--outer-momentum 0.5", "--asynchronous", says("average", "together"), "", "--sync averaging"),
    ("--average-momentum reset", "--asynchronous", says("average", "together"), "", "--sync averaging"),
    ("--dedicated", "no --asynchronous", says("--sync", "--asynchronous"), "--asynchronous", "--sync averaging"),
    ("--servers 2", "no --asynchronous", says("--sync", "--asynchronous"), "--asynchronous", "--sync averaging"),
    ("--wire float16", "--sync server", says("lose", "small"), strategies_with("wire")),
    ("--wire float16", "--sync gossip", says("lose", "small"), strategies_with("wire")),
    ("--wire float16", "--sync master", says("lose", "small"), strategies_with("wire")),
    ("--wire float16", "--sync sharded", says("lose", "small"), strategies_with("wire")),
    ("--wire bfloat16", "--sync averaging", says("lose", "small"), strategies_with("wire")),
    ("--sync master", "--algorithm ring", says("gathers", "star"), "--algorithm auto or star"),
    ("--tuning t.json", "--sync master", says("all-reduces", "choose"), "--sync allreduce, delayed"),
    ("--sync sharded", "--algorithm mpi", says("updates", "halves"), "--algorithm auto, ring, tree"),
    ("--sync sharded", "--algorithm hierarchical", says("updates", "halves"), "--algorithm auto, ring, tree"),
    ("--tuning t.json", "--sync sharded", says("all-reduces", "halves"), "--sync allreduce, delayed"),
    ("--sync delayed", "--overlap none", says("computes", "forbids"), "--overlap backward or forward"),
    ("--sync gossip", "--overlap forward", says("change", "during"), "--overlap backward"),
    ("--sync master", "--overlap none", says("passes", "change"), "--overlap backward"),
    ("--batch-norm sync", "--sync averaging", says("equal", "guarantee"), strategies_with("batch_norm_sync")),
    ("--batch-norm sync", "--sync gossip", says("equal", "guarantee"), strategies_with("batch_norm_sync")),
    ("--batch-norm sync", "--accumulate 2", says("statistics", "normalise"), "--accumulate 1"),
    ("--batch-norm sync", "--fc pipeline", says("different", "ones"), "--fc data or hybrid"),
    ("--batch-norm sync", "--recompute", says("exchanges", "statistics"), ""),
    ("--batch-norm sync", "--reproducible", says("statistics", "depends"), "--batch-norm ghost:SIZE"),
    ("--check-replicas 5", "--sync gossip", says("compares", "differ"), "--sync allreduce, delayed, sharded"),
    ("--check-replicas 5", "--sync averaging", says("compares", "differ"), "--sync allreduce, delayed, sharded"),
    ("--check-replicas 5", "--staleness 2", says("compares", "differ"), "--staleness 0", "--sync server"),
    ("--check-replicas 5", "--asynchronous", says("compares", "differ"), "", "--sync server"),
    ("--compress top-k", "--sync sharded", says("parameters", "slice"), strategies_with("compress")),
    ("--compress powersgd", "--sync averaging", says("rest", "later"), strategies_with("compress")),
    ("--compress top-k", "--sync gossip", says("rest", "later"), strategies_with("compress")),
    ("--compress top-k", "--sync master", says("compresses", "back"), strategies_with("compress")),
    ("--compress top-k", "--fc hybrid", says("rest", "later"), "--fc data"),
    ("--compress top-k", "--fc pipeline", says("rest", "later"), "--fc data"),
    ("--compress top-k", "--wire float16", says("lose", "rounding"), "--wire none"),
    ("--compress top-k", "--overlap forward", says("allows", "orders"), "--overlap none or backward"),
    ("--fc hybrid", "--sync delayed", says("applies", "late"), strategies_with("hybrid")),
    ("--fc hybrid", "--sync averaging", says("pass", "equal"), strategies_with("hybrid")),
    ("--fc hybrid", "--sync gossip", says("pass", "equal"), strategies_with("hybrid")),
    ("--fc hybrid", "--asynchronous", says("different", "batches"), "", "--sync server"),
    ("--fc hybrid", "--staleness 2", says("pass", "equal"), "--staleness 0", "--sync server"),
    ("--fc pipeline", "--sync averaging", says("joins", "network"), strategies_with("pipeline")),
    ("--fc pipeline", "--sync gossip", says("joins", "network"), strategies_with("pipeline")),
    ("--fc pipeline", "--sync delayed", says("applies", "late"), strategies_with("pipeline")),
    ("--fc pipeline", "--tuning t.json", says("some", "all-reduces"), ""),
    ("--fc pipeline", "--algorithm mpi", says("sums", "some"), "--algorithm auto, ring, tree"),
    ("--fc pipeline", "--algorithm hierarchical", says("sums", "some"), "--algorithm auto, ring, tree"),
    ("--ema 0.9", "--sync averaging", says("averages", "own"), strategies_with("ema")),
    ("--ema 0.9", "--sync gossip", says("averages", "own"), strategies_with("ema")),
    ("--ema 0.9", "--asynchronous", says("averages", "own"), "", "--sync server"),
    ("--ema 0.9", "--staleness 2", says("averages", "own"), "--staleness 0", "--sync server"),
    ("--ema 0.9", "--fc-update micro-batch", says("averages", "often"), "--fc-update accumulate", "--fc pipeline"),
    ("--fc-update micro-batch", "--clip-norm 2", says("update", "message"), "", "--fc pipeline"),
    ("--reproducible", "--sync sharded", says("updates", "added"), "--sync allreduce"),
    ("--reproducible", "--fc hybrid", says("any", "depends"), "--fc data"),
    ("--reproducible", "--wire float16", says("rounds", "depend"), "--wire none"),
    ("--reproducible", "--compress top-k", says("drops", "depend"), "--compress none"),
    ("--reproducible", "--accumulate 2", says("--shards"), "--accumulate 1"),
    ("--ops reference", "--reproducible", says("multiplies", "fixed"), ""),
    ("--precision float16", "--sync delayed", says("scales", "applies"), "--precision bfloat16, or --sync", CUDA),
    ("--precision float16", "--sync averaging", says("skips", "overflows"), "--precision bfloat16, or --sync", CUDA),
    ("--precision float16", "--sync gossip", says("skips", "overflows"), "--precision bfloat16, or --sync", CUDA),
    ("--precision float16", "--sync server", says("skips", "overflows"), "--precision bfloat16, or --sync", CUDA),
    (
        "--precision float16",
        "--compress top-k",
        says("scales", "applied"),
        "--precision bfloat16, or --compress none",
        CUDA,
    ),
    (
        "--precision float16",
        "--compress powersgd",
        says("scales", "applied"),
        "--precision bfloat16, or --compress none",
        CUDA,
    ),
    (
        "--precision bfloat16",
        "--sync master",
        says("keeps", "activations"),
        "--precision tf32, or --sync allreduce",
        CUDA,
    ),
    (
        "--precision float16",
        "--sync master",
        says("keeps", "activations"),
        "--precision tf32, or --sync allreduce",
        CUDA,
    ),
    ("--precision bfloat16", "--fc hybrid", says("keeps", "activations"), "--precision tf32, or --fc data", CUDA),
    ("--precision float16", "--fc pipeline", says("keeps", "activations"), "--precision tf32, or --fc data", CUDA),
    ("--precision tf32", "--dtype float64", says("computes", "checks"), "--dtype float32", CUDA),
    ("--elastic shrink", "--asynchronous", says("recovers", "dead"), "", "--sync server"),
    ("--elastic shrink", "--mpi-cuda direct", says("outlive", "moves"), "--mpi-cuda auto or staged", CUDA),
    ("--wire bfloat16", "--dtype float64", says("carries", "rounded"), "--dtype float32"),
    ("--random-resized-crop 0.1:1", "--no-augment", says("crops", "random"), "--augment"),
    ("--mixup 0.2", "--loss mse", says("trains", "shares"), "--loss ce"),
    ("--mixup 0.2", "--fc hybrid", says("mixes", "computed"), "--fc data"),
    ("--mixup 0.2", "--sync master", says("mixes", "computed"), "--sync allreduce, delayed"),
    ("--cutmix 0.5", "--loss mse", says("trains", "shares"), "--loss ce"),
    ("--cutmix 0.5", "--fc hybrid", says("mixes", "computed"), "--fc data"),
    ("--cutmix 0.5", "--sync master", says("mixes", "computed"), "--sync allreduce, delayed"),
    ("--synthetic", "--data d.h5", says("trains", "random"), ""),
    ("--synthetic", "--test-data d.h5", says("trains", "random"), ""),
)
# An option, who uses it, and what the run has in place of that.
UNUSED = (
    *((option, "--sync averaging", "--sync allreduce") for option in ("--average-every 4", "--average-from 3")),
    *((option, "--sync averaging", "--sync delayed") for option in ("--average-momentum keep", "--outer-lr 0.5")),
    ("--outer-momentum 0.5", "--sync averaging", "--sync allreduce"),
    *((option, "--sync averaging or server", "--sync allreduce") for option in ("--asynchronous", "--servers 2")),
    ("--dedicated", "--sync averaging or server", "--sync gossip"),
    ("--staleness 2", "--sync server", "--sync averaging"),
    ("--server-levels 2", "--sync server", "--sync allreduce"),
    ("--gossip-max-lag 4", "--sync gossip", "--sync allreduce"),
    *(
        (option, "--fc pipeline", "--fc data")
        for option in ("--fc-ranks 2", "--fc-in-flight 3", "--fc-update micro-batch")
    ),
    ("--compress-ratio 0.5", "--compress top-k", "--compress none"),
    ("--compress-rank 2", "--compress powersgd", "--compress top-k"),
    ("--compress-from 5", "--compress top-k or powersgd", "--compress none"),
    ("--label-smoothing 0.1", "--loss ce", "--loss mse"),
    ("--huber-delta 2", "--loss huber", "--loss ce"),
    *(("--trust-coefficient 0.01", "--optimizer lars", f"--optimizer {given}") for given in ("sgd", "lamb")),
    ("--trust-limit 10", "--optimizer lars or lamb", "--optimizer adamw"),
    *(("--eps 0.001", "--optimizer lamb, adamw, adam or rmsprop", f"--optimizer {given}") for given in ("sgd", "lars")),
    ("--min-lr 0.001", "--lr-policy step, multistep, poly, inv or cosine", "--lr-policy constant"),
    *(("--momentum-correction", "--optimizer lars", f"--optimizer {given}") for given in ("sgd", "lamb")),
    *(("--loss-scale 128", "--precision float16", f"--precision {given}") for given in ("float32", "bfloat16")),
    *((option, "--reproducible", "no --reproducible") for option in ("--shards 4", "--algorithm canonical")),
    ("--tuning t.json", "--algorithm auto", "--algorithm ring"),
    ("--trace-iterations 3:4", "--trace", "no --trace"),
    *((option, "--device cuda", "--device cpu") for option in ("--precision bfloat16", "--mpi-cuda direct")),
    ("--ops reference", "--device cpu", "--device cuda"),
)


def typed(*texts: str) -> TrainConfig:
    """From options as they are typed, but for those that begin with "no"."""
    given = {}
    for text in texts:
        for option in f" {text}".split(" --")[1:] if text[:3] != "no " else ():
            name, _, value = option.partition(" ")
            name = name.replace("-", "_")
            if name.startswith("no_"):
                given[name.removeprefix("no_")] = False
            else:
                given[name] = type(VALUES[name][0])(value or True)
    return TrainConfig(**given)


@pytest.mark.parametrize(("option", "other", "why", "instead", "beside"), [(*row, "")[:5] for row in REASONS], ids=str)
def test_the_sentence_names_both_options_the_reason_and_another_way(option, other, why, instead, beside):
    config = typed(option, other, beside)
    advice = f"Use {instead}" if instead else "Leave one of the two out"
    sentences = [sentence for sentence in refusals(config) if sentence.startswith(f"{option} ")]
    assert says(other, why, advice).matches(sentences), sentences
    with pytest.raises(ConfigError):
        check_options(config)


@pytest.mark.parametrize(("option", "users", "given"), UNUSED)
def test_an_option_that_nothing_uses_is_told_who_would(option, users, given):
    assert says(option, users, given).matches(list(refusals(typed(option, given))))


def test_each_rule_has_its_sentence_above():
    rows = [*(typed(*row[:2], *row[4:]) for row in REASONS), *(typed(row[0], row[2]) for row in UNUSED)]
    assert [rule for rule in RULES if not any(rule.refuses(config) for config in rows)] == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"sync": "gossip", "batch_norm": "sync"},
            "--batch-norm sync needs all ranks in every layer with equal weights; --sync gossip does not guarantee "
            f"that. Use {strategies_with('batch_norm_sync')}, or leave --batch-norm sync out",
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
    ],
)
def test_a_refusal_in_words(flags, told):
    with pytest.raises(ConfigError) as error:
        check_options(TrainConfig(**flags))
    assert str(error.value) == told
