"""--exact-order: at any number of ranks each step has the same examples, the same mean loss and the same weights."""

import json
import re
from itertools import chain

import numpy as np
import pytest

from ringtrain.data.batches.sampler import Sampler, batch_part
from tests.mpi.conftest import ROOT
from tests.mpi.test_mpi_torch import launched  # noqa: F401 (a fixture)
from tests.tiers import thorough

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi

ORDER = Sampler(37, 8)
LIBRARIES = {"plain": "torch", "lightning": "lightning", "accelerate": "accelerate", "trainer": "transformers"}
EXACT = ("--exact-order", "--global-batch", "8")
PATH = {"PYTHONPATH": str(ROOT)}  # Lightning imports the real matplotlib
OTHERS = ("lightning", "accelerate", "trainer")


def read(folder, run, ranks, first=0):
    """The mean loss of each batch of a run, after a check of its examples against the order; first: of the epochs"""
    lines = [
        [json.loads(line) for line in (folder / f"{run}-{rank}.jsonl").read_text().splitlines()]
        for rank in range(ranks)
    ]
    losses = []
    for number, each in enumerate(zip(*lines, strict=True), first):
        epoch, start, stop = ORDER.place(number)
        parts = [batch_part(stop - start, rank, ranks) for rank in range(ranks)]
        weights = [(last - begin) / (stop - start) for begin, last in parts]
        examples = [examples for (examples, _), weight in zip(each, weights, strict=True) if weight]
        assert [*chain(*examples)] == ORDER.order(epoch)[start:stop].tolist(), f"batch {number}"
        losses.append(sum(weight * loss for weight, (_, loss) in zip(weights, each, strict=True)))
    return np.array(losses)


@pytest.fixture
def trained(launched, tmp_path):  # noqa: F811
    """trained(library, ranks, words of the program, options of the launcher, folder) → losses, weights"""

    def run(library, ranks, *words, options=EXACT, folder=tmp_path, first=0):
        pytest.importorskip(LIBRARIES[library])
        name = f"run{ranks}-{len(list(folder.iterdir()))}"
        done = launched(ranks, " ".join(["exact.py", library, str(folder), name, *words]), *options, **PATH)
        assert done.returncode == 0, done.stdout + done.stderr
        return read(folder, name, ranks, first), np.array(json.loads((folder / f"{name}.json").read_text()))

    return run


def check_alike(one, others):
    for losses, weights in others:
        np.testing.assert_allclose(losses, one[0], rtol=1e-12)
        np.testing.assert_allclose(weights, one[1], rtol=1e-12)


@pytest.mark.parametrize(
    "library, words",
    [
        ("plain", ""),
        *thorough(
            *[(library, "") for library in OTHERS],
            *[(name, "accumulate=3") for name in LIBRARIES],
            ("trainer", "labels=1"),
        ),
    ],
)
def test_any_number_of_ranks_and_workers_trains_alike(trained, library, words):
    one = trained(library, 1, *words.split())
    assert len(one[0]) == 2 * ORDER.iterations_per_epoch
    runs = [(3, 0), (4, 2)] if library == "plain" else [(3, 2)]
    check_alike(one, [trained(library, ranks, *words.split(), f"workers={workers}") for ranks, workers in runs])


def test_a_rank_without_an_example_of_the_tail_weighs_nothing_and_a_script_may_weigh_itself(trained):
    check_alike(trained("plain", 1), [trained("plain", 6), trained("plain", 3, "own=1", options=())])


def test_owners_have_the_weighted_sums(trained):
    runs = [trained("plain", ranks, options=(*EXACT, "--sync", "sharded")) for ranks in (1, 3)]
    check_alike(runs[0], runs[1:])


def test_what_cannot_be_is_refused_by_name_on_all_ranks(launched, tmp_path):  # noqa: F811
    few = launched(3, f"exact.py plain {tmp_path} few", "--exact-order", "--global-batch", "2")
    assert few.returncode == 2 and len(re.findall("global batch of 2 for 3 ranks", few.stderr)) == 1, few.stderr


@pytest.mark.parametrize("library", ["plain", *thorough(*OTHERS)])
def test_a_killed_run_goes_on_with_another_number_of_ranks(trained, launched, tmp_path, library):  # noqa: F811
    pytest.importorskip(LIBRARIES[library])
    losses, weights = trained(library, 1)
    folder = tmp_path / "killed"
    folder.mkdir()
    killed = launched(3, f"exact.py {library} {folder} first every=3 stop=7 workers=2", *EXACT, **PATH)
    assert killed.returncode == 137, killed.stdout + killed.stderr
    rest = trained(library, 2, "every=3", folder=folder, first=6)
    check_alike((losses[6:], weights), [rest])
