"""What a script of DDP may do where a strategy exchanges its modules (docs/pytorch.md has the table)."""

import pytest

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")

from tests.says import says
from tests.tiers import daily, thorough

pytestmark = pytest.mark.mpi

EXACT = (
    "plain; no_sync; the attribute; bucket views; a norm; the largest; values; overflows; overflows, unscaled; "
    "overflows, fused; closure; checkpointed; two optimizers and modules; one optimizer of two modules; of no library; "
    "a GAN that freezes; rounded; a penalty; features; data; bfloat16; two types; beside_others; wrapped_again; copied"
    "; an empty parameter; skipped; skipped, clipped; a GAN"
)
OPTIONS = {  # options of the launcher → further cases
    "--overlap none": "; several passes; gradient_between; buffers; compiled; kept_gradients; caught",
    "--bucket-bytes 2000 --algorithm butterfly": "; several passes; gradient_between",
    "--overlap forward": "; compiled",
    "--sync sharded": "; compiled; buffers; unreached; dropped",
    "--sync server --servers 2 --overlap forward": "; unreached",
    "--sync server --overlap none": "; several passes",
}
APART = ("--sync averaging --average-every 4", "--sync gossip", "--sync server --staleness 2")


@pytest.fixture(scope="module")
def script(mpirun):
    """script(ranks, options, arguments) → CompletedProcess."""

    def start(ranks, options, *arguments):
        return mpirun(ranks, ["-m", "ringtrain.torch", "--deadline-s", "100", *options.split(), *arguments])

    return start


def programs(name):
    return f"tests/mpi/programs/{name}.py"


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2, 4)])
@pytest.mark.parametrize("options", OPTIONS)
def test_exact_strategies_do_what_ddp_does(script, options, ranks):
    cases = EXACT + OPTIONS[options]
    if ranks == 1 and "--servers 2" in options:
        pytest.skip("more servers than ranks are refused")
    done = script(ranks, options, programs("torch_rows"), cases)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{case}: all is well" for case in cases.split("; ")]


@pytest.mark.parametrize(
    ("ranks", "options", "arguments", "notes"),
    [
        (2, "--sync sharded", ("gradient_between; saved", "own"), 1),  # gradients and state are the rank's own
        (2, "--overlap forward --bucket-bytes 500", ("late",), 0),  # updates are waited for layer by layer
        *thorough(
            (2, "", ("compiled",), 0),  # over DDP's own reducer
            (3, "--sync server --asynchronous", ("collective",), 0),  # who waits for a collective serves the others
        ),
    ],
)
def test_cases_of_one_strategy(script, ranks, options, arguments, notes):
    done = script(ranks, options, programs("torch_rows"), *arguments)
    assert done.returncode == 0 and done.stderr.count("optimizer.state_dict()") == notes, done.stderr
    assert done.stdout.count("all is well") == len(arguments[0].split("; "))


@pytest.mark.parametrize(
    "options", [*APART, *thorough("--sync averaging --asynchronous", "--sync averaging --quorum 1")]
)
def test_ranks_that_are_apart_evaluate_alone_and_meet_when_they_are_asked(script, options):
    cases = "buffers; bfloat16; two types; a GAN" + ("; in_parallel; synchronized" if options == APART[0] else "")
    done = script(3, options, programs("torch_rows"), cases, "apart")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all is well") == len(cases.split("; "))
    assert ("synchronize()" in done.stderr) == ("synchronized" in cases)
    assert "evaluations and checkpoints" not in done.stderr  # the script's own are no part of the exchange


REFUSED = {  # case → options, words
    "thawed": ("--overlap none", says("never.weight", "freeze")),
    "grown": ("--sync sharded", says("1", "2", "add_param_group")),
    "changed_gradient": ("--sync sharded", says("first.weight", "--overlap none")),
    "second_pass": ("--sync server", says("--overlap none", "no_sync()")),
    "kept and clipped": ("--sync server --overlap none", says("zero_grad()", "None")),
    "several_calls": ("--sync averaging", says("LBFGS")),
    "two_optimizers": ("--sync gossip", says("SGD", "DistributedDataParallel")),
    "careless": ("--sync sharded", says("Plain", "without a gradient")),
    "shared": ("--overlap none", says("another DistributedDataParallel", "share")),
    "tied": ("--sync sharded", says("first.weight", "twin.weight", "Parameter")),
    "sparse": ("--overlap none", says("weight", "sparse=False")),
    "joined": ("--sync sharded", says("join()", "as many batches")),
    "hooked": ("--compress powersgd", says("register_comm_hook", "--wire float16")),
    "divided": ("--sync sharded", says("FSDP", "--sync sharded")),
}


@pytest.mark.parametrize("case", daily(REFUSED, "changed_gradient", "thawed"))
def test_what_a_strategy_cannot_do_is_refused_by_name(script, case):
    options, words = REFUSED[case]
    done = script(2, options, programs("torch_rows"), case)
    assert done.returncode == 1 and words.matches(done.stderr), done.stderr
    assert "all is well" not in done.stdout


RESUMED = {
    "DiLoCo": "--sync averaging --average-every 4 --average-momentum keep --outer-momentum 0.9 --outer-lr 0.7",
    "sparse changes": "--sync averaging --average-every 4 --average-momentum keep --outer-lr 0.7 --compress top-k",
    "streaming": "--sync averaging --fragments 3 --average-delay 7 --mixing 0.3 --outer-momentum 0.9 --outer-lr 0.7",
    "a centre": "--sync averaging --average-every 4 --centre-rate 0.2 --average-momentum keep",
    "PowerSGD": "--compress powersgd",
    "few bits": "--compress quantise --compress-bits 2 --residual-decay 0.9",
    "sharded": "--sync sharded",
    "averaging": "--sync averaging --average-every 4",
    "delayed": "--sync delayed --compress top-k",
    "gossip": "--sync gossip",
    "NoLoCo": "--sync gossip --gossip-every 4 --outer-momentum 0.5 --outer-lr 0.7",
    "server": "--sync server --overlap forward",
}


@pytest.fixture(scope="module")
def stopped(request, script, tmp_path_factory):
    """A strategy, what 3 ranks print that nobody stops, and the state of 3 that stop in mid-period."""
    state = tmp_path_factory.mktemp("stopped") / "state.pt"
    ends = [script(3, RESUMED[request.param], programs("torch_resumes"), what, state) for what in ("whole", "first")]
    assert all(done.returncode == 0 for done in ends), ends
    return request.param, ends[0].stdout, state


@pytest.mark.parametrize("ranks", [3, *thorough(2, 4)])
@pytest.mark.parametrize("stopped", daily(RESUMED, "DiLoCo", "sharded"), indirect=True)
def test_a_script_that_is_stopped_in_mid_period_goes_on_with_any_number_of_ranks(script, stopped, ranks):
    name, whole, state = stopped
    second = script(ranks, RESUMED[name], programs("torch_resumes"), "second", state)
    assert second.returncode == 0, second.stderr
    *hashes, norm = second.stdout.split()
    assert len(hashes) == ranks and len(set(hashes)) == 1
    assert ranks != 3 or second.stdout == whole
    assert name not in ("sharded", "server") or norm == whole.split()[-1]
