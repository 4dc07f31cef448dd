"""Exact order in one process: parts of ranks, what counts as done, which loaders it replaces; shards as datasets."""

import io
import pickle
import tarfile

import h5py
import numpy as np
import pytest

from ringtrain.cli.python_script import parse_script_command
from ringtrain.data.batches.order import Windows
from ringtrain.data.batches.sampler import Sampler, batch_part
from ringtrain.errors import DataError, UsageError
from tests.says import says

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")

from torch.utils import data as loading  # noqa: E402

import ringtrain.torch  # noqa: E402
from ringtrain.torch import datasets, exact_order  # noqa: E402

COUNT, BATCH = 21, 8
ORDER = Sampler(COUNT, BATCH, 3)
NUMBERS = loading.TensorDataset(torch.arange(COUNT))


@pytest.fixture
def rank(monkeypatch):
    """rank(number, size): be this one"""

    def be(number, size):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: number)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: size)

    return be


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(exact_order, "_state", exact_order._State())


def step():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight]).step()


def batches(loader, most=None):
    """The examples that a loop gets, each followed by a step."""
    taken = []
    for (rows,) in loader:
        taken.append(rows.tolist())
        step()
        if len(taken) == most:
            break
    return taken


def wanted(epoch=0, first=0):
    order = ORDER.order(epoch).tolist()
    return [order[start : start + BATCH] for start in range(first * BATCH, COUNT, BATCH)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_the_parts_of_all_ranks_are_the_batches_of_the_order(rank, size):
    parts, shares = [], []
    for number in range(size):
        rank(number, size)
        sampler = ringtrain.torch.ExactSampler(NUMBERS, BATCH, seed=3)
        parts.append(batches(loading.DataLoader(NUMBERS, batch_sampler=sampler)))
        shares.append([share.units / share.count for share in sampler.shares])
    for number, batch in enumerate(wanted()):
        is_tail = number == len(wanted()) - 1
        weighed = [part[number] for part, share in zip(parts, shares, strict=True) if share[-1] or not is_tail]
        assert sum(weighed, []) == batch  # noqa: RUF017
    assert sum(share[-1] for share in shares) == 1 and all(all(part) for part in parts)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_done_is_what_steps_have_followed_and_another_number_of_ranks_goes_on(rank, workers):
    sampler = ringtrain.torch.ExactSampler(NUMBERS, BATCH, seed=3)
    loader = loading.DataLoader(NUMBERS, batch_sampler=sampler, num_workers=workers)
    next(iter(loader))
    assert batches(loader, 1) == wanted()[:1]  # a look at a batch counts for nothing
    state = sampler.state_dict()
    assert state == {"seed": 3, "examples_done": BATCH}
    assert batches(loader) == wanted(first=1) and batches(loader) == wanted(1)
    sampler.set_epoch(5)
    assert batches(loader) == wanted(5) and len(loader) == len(wanted())
    rank(1, 2)
    other = ringtrain.torch.ExactSampler(NUMBERS, BATCH)
    other.load_state_dict(state)
    other.set_epoch(0)
    rest = batches(loading.DataLoader(NUMBERS, batch_sampler=other, num_workers=workers))
    assert rest == [batch[len(batch) // 2 :] for batch in wanted(first=1)]
    with pytest.raises(DataError, match=says(8, "--batch")):
        ringtrain.torch.ExactSampler(NUMBERS, 5).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 1])
def test_survivors_divide_what_none_has_been_handed_over(rank, workers, ahead):
    """ahead: batches that another survivor has been handed over beyond this one's"""
    rank(2, 4)
    sampler = ringtrain.torch.ExactSampler(NUMBERS, BATCH, seed=3)
    rows, parts, weights = iter(loading.DataLoader(NUMBERS, batch_sampler=sampler, num_workers=workers)), [], []
    parts += next(rows)
    rank(1, 3)  # rank 1 of 4 has died in the first step
    ((number, handed),) = exact_order.handed_over()
    exact_order.go_on_among(1, [0, 2, 3], [(number, handed), (number, handed + ahead * BATCH)])
    weights.append(exact_order.weight_after_deaths())
    for (batch,) in rows:
        step()
        parts.append(batch)
        weights.append(exact_order.weight_after_deaths())
    step()
    sizes = [(2, 4)] * (1 + ahead) + [(1, 3)] * (2 - ahead)
    bounds = [batch_part(len(batch), *place) for batch, place in zip(wanted(), sizes, strict=True)]
    assert [part.tolist() for part in parts] == [b[i:j] for b, (i, j) in zip(wanted(), bounds, strict=True)]
    # 6 of 8 examples are left of batches in four parts; a mean over three ranks divides by 3, and factors count 4
    assert weights == pytest.approx([8 / 6 * 3 / 4] * (1 + ahead) + [1] * (2 - ahead))
    assert sampler.examples_done == COUNT


def test_the_state_of_a_loader_in_whose_place_an_order_is_comes_back_before_its_first_pass():
    exact_order.replace_shuffling(BATCH, 3)
    batches(loading.DataLoader(NUMBERS, shuffle=True), 2)
    saved = ringtrain.torch.state_dict()
    assert saved == [{"seed": 3, "examples_done": 2 * BATCH}]
    exact_order._state = exact_order._State()
    exact_order.replace_shuffling(BATCH, 0)
    ringtrain.torch.load_state_dict(saved)
    loader = loading.DataLoader(NUMBERS, shuffle=True)
    assert batches(loader) == wanted(first=2) and loader.state_dict()["examples_done"] == COUNT
    rows = iter(loader)
    next(rows)
    loader.load_state_dict({"seed": 3, "examples_done": 3 * COUNT})
    with pytest.raises(UsageError, match=says("begun a pass")):
        next(rows)


class OwnSampler(loading.RandomSampler):
    """As a script may have it."""


@pytest.mark.parametrize(
    "options, how",
    [
        ({"shuffle": True}, "exact"),
        ({"shuffle": True, "drop_last": True}, "exact"),
        ({"sampler": loading.DistributedSampler(NUMBERS, 1, 0)}, "exact"),
        ({"shuffle": False}, "alone"),
        ({"sampler": loading.DistributedSampler(NUMBERS, 1, 0, shuffle=False)}, "alone"),
        ({"sampler": loading.WeightedRandomSampler([1.0] * COUNT, COUNT)}, "WeightedRandomSampler"),
        ({"sampler": OwnSampler(NUMBERS)}, "OwnSampler"),
        ({"sampler": loading.RandomSampler(NUMBERS, replacement=True)}, "RandomSampler"),
        ({"shuffle": True, "batch_size": None}, "RandomSampler"),
    ],
)
def test_loaders_that_shuffle_are_replaced_and_others_left_alone(capsys, options, how):
    exact_order.replace_shuffling(BATCH, 3)
    loader = loading.DataLoader(NUMBERS, **{"batch_size": 4, **options})
    taken = [rows.flatten().tolist() for (rows,) in loader]
    note, most = capsys.readouterr().err, -1 if options.get("drop_last") else None
    assert (taken == wanted()[:most]) is (how == "exact") and (how in note) is (how not in ("exact", "alone"))
    assert len(loader) == len(taken) and exact_order.had_no_effect() is (how != "exact")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ringtrain.torch.ExactSampler(iter(NUMBERS), 4), ["iterator", "map-style"]),
        (lambda: exact_order.check_batch(2, 3), [2, 3]),
        (lambda: parse_script_command(["--exact-order", "train.py"]), ["--exact-order", "--global-batch"]),
        (lambda: parse_script_command(["--global-batch", "8", "train.py"]), ["--exact-order", "--global-batch"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, words):
    with pytest.raises(UsageError, match=says(*words)):
        make()


def test_two_batches_of_different_weights_before_a_backward_are_refused():
    factor, layer = exact_order.GradientFactor(), torch.nn.Linear(1, 1)
    for number in (0.5, 0.0, 1.0):
        factor.begin(layer, number)
        layer.zero_grad()
        layer(torch.ones(1)).backward()
        assert layer.weight.grad == number
    factor.begin(layer, 1.0)
    with pytest.raises(UsageError, match=says("backward()", "drop_last")):
        factor.begin(layer, 0.5)


# ── shards ────────────────────────────────────────────────────────────────────────────────────────────────────
X, Y = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6), np.arange(COUNT) % 4


def write_hdf5(folder, **options):
    for name, rows in (("a", slice(0, 9)), ("b", slice(9, None))):
        with h5py.File(folder / f"train-{name}.h5", "w") as file:
            file.create_dataset("x", data=X[rows], **options)
            file.create_dataset("y", data=Y[rows])
    return f"{folder}/train-*.h5"


def write_npz(folder):
    np.savez_compressed(folder / "set.npz", x=X, y=Y)
    return folder / "set.npz"


@pytest.mark.parametrize("write", [write_hdf5, lambda folder: write_hdf5(folder, compression="gzip"), write_npz])
def test_shards_are_read_in_exact_order_and_in_windows_where_they_are_large(tmp_path, monkeypatch, write):
    monkeypatch.setattr(datasets, "FULL_BYTES", X.nbytes // 2)
    monkeypatch.setattr(Windows, "of", lambda count, row_bytes: Windows(count, 3, 2))
    opened = ringtrain.torch.open_dataset(write(tmp_path))
    assert (opened[20][0].numpy() == X[20]).all() and opened[20][1] == Y[20]  # before workers are forked
    sampler = ringtrain.torch.ExactSampler(opened, BATCH, seed=3)
    order = Sampler(COUNT, BATCH, 3, windows=Windows(COUNT, 3, 2)).order(0)
    for workers, examples in ((0, opened), (2, opened), (0, pickle.loads(pickle.dumps(opened)))):
        passed = list(loading.DataLoader(examples, batch_sampler=sampler, num_workers=workers))
        assert (torch.cat([x for x, _ in passed]).numpy() == X[order]).all()
        assert torch.cat([y for _, y in passed]).tolist() == Y[order].tolist()
        sampler.examples_done = 0


def test_tar_shards_and_arrays_without_labels_are_datasets(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as shard:
            stream = io.BytesIO()
            pictures.new("RGB", (4, 3), (9, 8, 7)).save(stream, "PNG")
            member = tarfile.TarInfo(f"{name}/1.png")
            member.size = stream.tell()
            shard.addfile(member, io.BytesIO(stream.getvalue()))
    opened = ringtrain.torch.open_dataset(f"{tmp_path}/*.tar", transform=lambda image: image[0, 0].tolist())
    assert [opened[number] for number in range(2)] == [([9, 8, 7], 0), ([9, 8, 7], 1)]
    np.save(tmp_path / "x.npy", X)
    ((row,),) = ringtrain.torch.open_dataset(tmp_path / "x.npy").__getitems__([4])
    assert (row.numpy() == X[4]).all()
    with pytest.raises(DataError, match=says("x.npy", "test", "train")):
        ringtrain.torch.open_dataset(tmp_path / "x.npy", "test")
