"""Strategies of ``python -m ringtrain.torch`` compute, for a script of DDP that knows none, what plain PyTorch computes
in one process. Single strategies have their simulations in tests/exchange, and all of them the contract of
tests/train/test_train_strategies_torch.py."""

from functools import partial
from pathlib import Path

import pytest

from ringtrain.exchange.servers.shards import divide_ownership, in_even_order
from ringtrain.memory.arena import lay_out
from ringtrain.memory.spans import Fill, Parameter
from tests.tiers import daily, thorough

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
from tests.mpi import torch_references as references  # noqa: E402

pytestmark = pytest.mark.mpi
RECIPES, STEPS = tuple(references.RECIPES), references.STEPS
STAR = ("-a", "star")  # adds in the order of ranks
SHORT = ("--bucket-bytes", "1000")  # several buckets

OUTER = ("--outer-momentum", "0.9", "--outer-lr", "0.7")
STRATEGIES = {
    "averaging": (("--sync", "averaging", *STAR), references.averaging),
    "keep": (("--sync", "averaging", "--average-momentum", "keep", *STAR), partial(references.averaging, keep=True)),
    "post-local": (("--sync", "averaging", "--average-from", "9", *STAR), partial(references.averaging, begin=9)),
    "diloco": (("--sync", "averaging", *OUTER, *STAR), partial(references.averaging, outer=(0.9, 0.7))),
    "delayed": (("--sync", "delayed", *STAR, *SHORT), references.delayed),
    "server": (("--sync", "server"), references.server),
    "two servers": (("--sync", "server", "--servers", "2", *SHORT), references.server),
    "powersgd": (
        ("--compress", "powersgd", "--compress-rank", "2", *STAR, *SHORT),
        partial(references.together, lambda: references.PowerSGD(2)),
    ),
}
EXACT = {
    "engine": (),
    "forward": ("--overlap", "forward", *SHORT),
    "sharded": ("--sync", "sharded"),
    "server": ("--sync", "server"),
    "two servers": ("--sync", "server", "--servers", "2"),
}


@pytest.fixture(scope="session")
def trained(mpirun, tmp_path_factory):
    """trained(ranks, options of the launcher, arguments of the script) → what each rank saved"""

    def run(ranks, options, *arguments, **more):
        out = tmp_path_factory.mktemp("ranks")
        launcher = ["-W", "ignore", "-m", "ringtrain.torch", "--deadline-s", "60", *options]
        program = Path(__file__).parent / "programs" / "torch_strategies.py"
        done = mpirun(ranks, [*launcher, program, out, *map(str, arguments)], **more)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return [torch.load(out / f"{rank}.pt") for rank in range(ranks)]

    return run


@pytest.fixture(scope="session")
def plain(trained):
    """plain(ranks, steps) → what each rank of DDP's own reducer saved"""
    known = {}

    def run(ranks, steps):
        if (ranks, steps) not in known:
            known[ranks, steps] = trained(ranks, (), ",".join(RECIPES), steps)
        return known[ranks, steps]

    return run


def farthest(weights, wanted):
    """The largest difference, over all ranks and weights."""
    pairs = zip(weights, wanted, strict=True)
    return max(float((a - b).abs().max()) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", daily(STRATEGIES, "diloco", "powersgd"))
def test_a_strategy_computes_what_plain_pytorch_does(trained, name):
    options, reference = STRATEGIES[name]
    ends = trained(3, options, ",".join(RECIPES), STEPS)
    for recipe in RECIPES:
        assert farthest([end[recipe] for end in ends], reference(recipe, 3)) <= 1e-12, recipe


@pytest.mark.parametrize(("name", "ranks"), thorough(*((name, ranks) for name in EXACT for ranks in (2, 3))))
def test_an_exact_strategy_computes_what_ddp_does(trained, plain, name, ranks):
    wanted = plain(ranks, 20)
    ends = trained(ranks, EXACT[name], ",".join(RECIPES), 20, RINGTRAIN_ENGINE="1")
    for recipe in RECIPES:
        assert farthest([end[recipe] for end in ends], [end[recipe] for end in wanted]) <= 1e-9, recipe


@pytest.mark.thorough
def test_ddp_itself_computes_what_the_reference_does(plain):
    for recipe in RECIPES:
        ends = [end[recipe] for end in plain(3, 20)]
        assert farthest(ends, references.allreduce(recipe, 3, 20)) <= 1e-12


# ── state by rank ─────────────────────────────────────────────────────────────────────────────────────────────
def is_even(parts, largest):
    return max(parts) <= max(largest, 1.3 * sum(parts) / len(parts))


@pytest.mark.parametrize(("options", "owners"), thorough(("--sync sharded", 3), ("--sync server --servers 2", 2)))
def test_a_rank_has_state_of_the_parameters_that_it_updates(trained, options, owners):
    elements = [end["elements"] for end in trained(3, options.split(), "gpt", 1)]
    counts = [weight.numel() for weight in references.GPT().parameters()]
    assert sum(elements) == 2 * sum(counts) and elements[owners:] == [0] * (3 - owners)
    assert is_even(elements[:owners], 2 * max(counts))


@pytest.mark.parametrize("ranks", range(2, 17))
def test_owners_of_whole_parameters_have_about_equal_parts(ranks):
    named = references.GPT().named_parameters()
    table = [(name, Parameter(name, tuple(p.shape), Fill("constant"))) for name, p in named]
    spans = lay_out(tuple(table[index] for index in in_even_order(lay_out(tuple(table)), ranks)))
    parts = [sum(span.count for span in part) for part in divide_ownership(spans, ranks, whole=True)]
    assert sum(parts) == sum(span.count for span in spans) == sum(p.numel() for p in references.GPT().parameters())
    assert is_even(parts, max(span.count for span in spans))
