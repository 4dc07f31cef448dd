"""A script of PyTorch has the same bits wherever its ranks are, and with parts of a batch at any number of them."""

import re
from pathlib import Path

import pytest

from tests.mpi.conftest import APART
from tests.tiers import daily

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi
PROGRAM = str(Path(__file__).parent / "programs/pytorch/same_bits.py")
NETS = ("mlp", "resnet", "attention")
LOWEST = ("--reproducible-isa", "lowest")


@pytest.fixture
def start(mpirun, tmp_path):
    def start(ranks: int, name: str, *words: str, options=(), **variables: str):
        command = ["-m", "ringtrain.torch", "--reproducible", *options, PROGRAM, name, str(tmp_path / "saved"), *words]
        return mpirun(ranks, ["-W", "ignore", *command], **variables)

    return start


@pytest.fixture
def hashes(start):
    """Run the program: the hashes of its weights, and of a sum over its ranks."""

    def hashes(*arguments, **named) -> tuple[str, str]:
        done = start(*arguments, **named)
        assert done.returncode == 0, done.stderr
        (weights,), (sums,) = re.findall(r"weights sha256 (\w{64})", done.stderr), re.findall(r"sum (\w+)", done.stdout)
        return weights, sums

    return hashes


@pytest.mark.parametrize("name", daily(("mlp", "attention"), "attention"))
def test_parts_of_a_batch_have_the_same_bits_at_any_number_of_ranks(hashes, name):
    ways = [(1, ()), (2, ("--overlap", "forward")), (4, ("--overlap", "none", "--bucket-bytes", "2000"))]
    weights = {hashes(ranks, name, "parts", options=("--shards", "4", *more))[0] for ranks, more in ways}
    assert len(weights) == 1
    assert hashes(2, name, "parts", options=("--shards", "2"))[0] not in weights


@pytest.mark.parametrize("name", daily(NETS, "resnet"))
def test_as_many_ranks_have_the_same_bits_over_memory_and_messages(hashes, name):
    ways = {
        "memory": {},
        "messages": dict(APART),
        "one core, no overlap": {"words": ("one-core",), "options": ("--overlap", "none", "-a", "canonical")},
        "late updates": {"options": ("--overlap", "forward", "--bucket-bytes", "2000")},
    }
    results = {way: hashes(3, name, *how.pop("words", ()), **how) for way, how in ways.items()}
    assert len(set(results.values())) == 1, results


@pytest.mark.parametrize("name", daily(NETS, "mlp"))
def test_a_run_that_stops_and_goes_on_has_the_bits_of_one_that_does_not(hashes, name):
    whole = hashes(2, name)
    hashes(2, name, "stop", "3")
    assert hashes(2, name, "resume") == whole


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETS)
def test_the_lowest_instructions_do_not_depend_on_what_the_host_has(hashes, name):
    caps = {}, {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}, {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    weights = {hashes(2, name, options=LOWEST, **cap)[0] for cap in caps}
    assert len(weights) == 1 and weights != {hashes(2, name)[0]}


@pytest.mark.parametrize(
    "name, words, options, says",
    [
        ("mlp", (), ("--shards", "4"), "for part in ringtrain.torch.parts(batch)"),
        ("resnet", ("parts",), ("--shards", "4"), "BatchNorm2d keeps statistics"),
        ("mlp", ("parts",), ("--shards", "10"), "12 examples, and this rank has 5 parts"),
        ("mlp", ("parts",), ("--shards", "3"), "a number of ranks that divides 3"),
    ],
)
def test_what_depends_on_the_number_of_ranks_is_refused_by_name(start, name, words, options, says):
    done = start(2, name, *words, options=options)
    assert done.returncode in (1, 2) and says in done.stderr, done.stderr
