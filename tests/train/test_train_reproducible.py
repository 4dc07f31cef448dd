"""``--reproducible``: bit by bit the same weights, optimizer, losses and scores at any number of ranks. Training from
files has the bits of training from memory."""

import hashlib
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import BATCH_NORM_NET, DROPOUT_NET, begun, everywhere, iterate, run_of

from ringtrain.data.file.dataset import open_dataset
from ringtrain.errors import ConfigError
from ringtrain.ops.cpu import CpuOps
from ringtrain.train.assembly import batch_norm, reproducible
from ringtrain.train.checkpoints.state import Progress, capture
from ringtrain.train.load import load, score_of
from ringtrain.transport.world import connect
from tests.runs import records
from tests.says import says
from tests.tiers import daily, thorough

# 297 = 4·73 + 5: the fifth batch leaves three of eight shards, and ranks, without an example.
TAILED = {"batch": 73}
ITERATIONS = 6
CASES = {
    "dropout": (DROPOUT_NET, {}),
    "ghost": (BATCH_NORM_NET, {"optimizer": "nesterov", "clip_norm": 0.5}),
    "lars": (BATCH_NORM_NET, {"optimizer": "lars", "lr": 0.2, "trust_coefficient": 0.05}),
    "lamb": (DROPOUT_NET, {"optimizer": "lamb", "lr": 0.01, "clip_norm": 0.5, "overlap": "forward"}),
    "adam": (DROPOUT_NET, {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01, "ema": 0.9}),
    "rmsprop": (BATCH_NORM_NET, {"optimizer": "rmsprop", "lr": 0.01, "momentum": 0.5, "ema": 0.8}),
    "muon": (DROPOUT_NET, {"optimizer": "muon", "lr": 0.01, "bucket_bytes": 500}),
    "adamw": (DROPOUT_NET, {"optimizer": "adamw", "lr": 0.01, "label_smoothing": 0.1}),
}


def bits(checkpoint) -> str:
    """Of the weights and the optimizer's state."""
    digest = hashlib.sha256()
    for arrays in (checkpoint.weights, *checkpoint.optimizer.values()):
        for name, array in arrays.items():
            digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def trained(transport, net, stop, first=0, checkpoint=None, scored=False, **flags):
    """(losses, score, hash of the weights here, rank 0's checkpoint) of iterations ``first`` up to ``stop``."""
    run, ops = begun(transport, net, "cpu", checkpoint, **{"iterations": stop, "reproducible": True, **TAILED, **flags})
    outcomes = iterate(run, transport, first, stop)
    run.exchange.synchronize()
    score = run.evaluator.score(run.data.test, run.evaluation_batch, run.evaluation_grain) if scored else None
    losses = [(outcome.loss_sum, outcome.correct, outcome.valid) for outcome in outcomes]
    return losses, score, run.arena.hash(ops), capture(run, Progress(iteration=stop))


def bits_at(size, *options, **flags):
    """What all ranks agree on: (losses, score, bits of the state)."""
    ranks = everywhere(size, lambda t: trained(t, *options, **flags))
    assert len({digest for _, _, digest, _ in ranks}) == 1
    assert all(each[:2] == ranks[0][:2] for each in ranks)
    return *ranks[0][:2], bits(ranks[0][3])


@pytest.mark.parametrize("case", daily(CASES, "ghost", "lamb", "adam", "muon"))
def test_the_same_bits_at_any_number_of_ranks(case):
    net, flags = CASES[case]
    one = bits_at(1, net, ITERATIONS, scored=True, **flags)
    for size in (2, 3, 8):
        assert bits_at(size, net, ITERATIONS, scored=True, **flags) == one


@pytest.mark.parametrize("size", [5, 7, *thorough(4, 6)])
def test_at_the_other_numbers_too(size):
    assert bits_at(size, BATCH_NORM_NET, 3) == bits_at(1, BATCH_NORM_NET, 3)


def test_without_it_bits_hang_on_the_number_of_ranks():
    """Or there was nothing to do: losses and weights differ, if by little."""
    one, three = (bits_at(size, DROPOUT_NET, ITERATIONS, reproducible=False, scored=True) for size in (1, 3))
    assert one[0] != three[0] and one[2] != three[2]
    assert np.allclose([loss for loss, _, _ in one[0]], [loss for loss, _, _ in three[0]], rtol=1e-4)


def test_the_number_of_shards_and_the_seed_are_part_of_the_run():
    bits = [bits_at(2, DROPOUT_NET, 3, **flags)[2] for flags in ({}, {"shards": 4}, {"seed": 1})]
    assert len(set(bits)) == 3
    # More shards than most of which have examples, and more ranks.
    assert bits_at(9, DROPOUT_NET, 2, shards=11) == bits_at(1, DROPOUT_NET, 2, shards=11)


@pytest.mark.parametrize(
    "flags",
    [{"bucket_bytes": 64}, {"bucket_bytes": 1000, "overlap": "forward"}, {"algorithm": "canonical", "overlap": "none"}],
)
def test_how_gradients_travel_does_not_count(flags):
    wanted = bits_at(1, BATCH_NORM_NET, 4)
    assert bits_at(3, BATCH_NORM_NET, 4, **flags) == bits_at(2, BATCH_NORM_NET, 4, **flags) == wanted


@pytest.mark.parametrize(
    ("sizes", "flags"), [((4, 2, 1), {}), ((1, 3, 8), {"ema": 0.8}), ((1, 2, 1), {"optimizer": "muon"})]
)
def test_stopped_within_an_epoch_and_gone_on_with_at_other_numbers(sizes, flags):
    state, first = None, 0
    for size, stop in zip(sizes, (2, 5, 7), strict=True):
        ranks = everywhere(size, lambda t, s=state, a=first, b=stop: trained(t, BATCH_NORM_NET, b, a, s, **flags))
        state, first = ranks[0][3], stop
    assert bits(state) == bits_at(1, BATCH_NORM_NET, 7, **flags)[2]


# ── batch normalisation ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_shard_that_is_smaller_than_a_ghost_batch_is_one():
    """32 examples in 4 shards of 8: the ghost batches of 8 that the model asks for, and one of 1000 cut to that."""
    flags = {"shards": 4, "batch": 32}
    wanted = bits_at(2, BATCH_NORM_NET, 3, **flags)
    assert bits_at(2, BATCH_NORM_NET.replace("ghost = 8", "ghost = 1000"), 3, **flags) == wanted
    assert bits_at(2, BATCH_NORM_NET.replace("ghost = 8", "ghost = 4"), 3, **flags) != wanted


def test_running_statistics_move_once_an_iteration():
    """By the mean over all shards: one step at ``rate`` 0.1 of the way, of a mean that began at 0."""

    def means(t, **flags):
        run, ops = run_of(t, BATCH_NORM_NET, dtype="float64", iterations=1, **flags)
        iterate(run, t, 0, 1)
        run.exchange.synchronize()
        span = next(span for span in run.arena.spans if span.name == "norm1.mean")
        return ops.to_host(run.arena.weight(span))

    flags = {"batch": 64, "lr": 1e-9}
    shards, whole = (everywhere(1, lambda t, f=f: means(t, **flags, **f))[0] for f in ({"reproducible": True}, {}))
    assert np.allclose(shards, whole, rtol=1e-9)


def test_ghost_batches_that_end_with_a_shard_are_told_of():
    def noted(**flags):
        run, _ = everywhere(1, lambda t: run_of(t, BATCH_NORM_NET, reproducible=True, iterations=1, **flags))[0]
        return batch_norm.partial_ghosts(run.config, run.graph)

    assert noted(batch=64) is None
    assert noted(batch=32) == says("4", 8, "--shards", 4)
    assert noted(batch=36) == says("4 or 5", 8, "--shards", "--batch", 36)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def train(train, folder):
    """train(flag=value...): a reproducible run of a small net on one rank, in an empty folder."""
    (folder / "net.toml").write_text(BATCH_NORM_NET)
    return partial(train, reproducible=True, batch=360, ops="cpu")


def test_what_is_fixed_is_in_the_header_and_each_epoch_has_its_hash(train, tmp_path, capsys):
    train(out="run", epochs=2)
    (begun,), epochs = records(tmp_path / "run", "start"), records(tmp_path / "run", "epoch")
    assert begun["reproducible"] == says(8, CpuOps().numerics()) and begun["device"].endswith(", 1 thread")
    shown = capsys.readouterr().out
    assert f"  fixed      {begun['reproducible']}\n" in shown
    hashes = [epoch["weights_sha256"] for epoch in epochs]
    assert len(set(hashes)) == 2 and records(tmp_path / "run", "end")[0]["weights_sha256"] == hashes[1]
    assert all(says(each).matches(shown) for each in hashes)
    # Other runs log the hash, too, where ranks have one state; a reproducible run alone shows it.
    train(out="other", epochs=1, reproducible=False, evaluate_every=3)
    assert records(tmp_path / "other", "start")[0]["reproducible"] is None
    (epoch,), (end,) = records(tmp_path / "other", "epoch"), records(tmp_path / "other", "end")
    assert epoch["weights_sha256"] == end["weights_sha256"] and "sha256" not in capsys.readouterr().out
    train(out="apart", epochs=2, reproducible=False, evaluate_every=7, sync="averaging")
    assert records(tmp_path / "apart", "epoch")[0]["weights_sha256"] is None


def test_it_goes_on_as_it_began(train, tmp_path, monkeypatch):
    train(out="run", iterations=2)
    for flags, said in (
        ({"shards": 4}, says("shards", "8", "4")),
        ({"reproducible": False}, says("reproducible", "True", "False")),
        ({"out": "new", "batch": 7}, says("--batch", "--shards", "--reproducible", 7, 8)),
    ):
        with pytest.raises(ConfigError, match=said):
            train(**{"out": "run", "resume": "auto", "iterations": 3, **flags})
    train(out="run", resume="auto", iterations=3, threads=2)  # which change no bit
    with monkeypatch.context() as patched:
        patched.setattr(CpuOps, "numerics", lambda self: "kernels 00000000")
        train(out="run", resume="auto", iterations=4)
    moved = says(CpuOps().numerics(), "kernels 00000000")
    assert [note["text"] for note in records(tmp_path / "run", "note")].count(moved) == 1
    # Its examples would be cut elsewhere by each number of ranks.
    one, *others = [everywhere(size, lambda t: score_of(t, load(t, "run", False, {}, "train"))) for size in (1, 2, 3)]
    assert all(score == one[0] for scores in others for score in scores)


def test_ranks_on_processors_of_several_kinds_are_refused():
    def check(t, wanted):
        run, _ = run_of(t, DROPOUT_NET, reproducible=wanted)
        words = "kernels 1, products and sums rounded apart" if t.rank == 1 else "kernels 1"
        reproducible.check_kernels(run.config.exchange, t, SimpleNamespace(numerics=lambda: words))

    kernels = "kernels 1 on ranks 0, 2; kernels 1, products and sums rounded apart on rank 1"
    with pytest.raises(ConfigError, match=says("--reproducible", kernels)):
        everywhere(3, lambda t: check(t, True))
    everywhere(3, lambda t: check(t, False))


# ── training from files, and from memory ──────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def files(tmp_path):
    digits = open_dataset("digits").train
    for number, rows in enumerate((slice(0, 150), slice(150, 300))):
        np.savez(tmp_path / f"part-{number}.npz", x=digits.images[rows], y=digits.labels[rows])
    return f"{tmp_path}/part-*.npz"


def weights(transport, data, start=0, **flags):
    """(held, hash of the weights, examples) of the iterations from ``start`` up to 12."""
    run, ops = run_of(transport, DROPOUT_NET, examples=None, data=data, iterations=12, **flags)
    seen = []
    iterate(run, transport, start, 12, lambda batch: seen.append(batch.examples.copy()))
    return run.data.location, run.arena.hash(ops), np.concatenate(seen).tolist()


@pytest.mark.parametrize("shuffle", ["full", "blocks", None])
def test_streamed_and_in_memory_have_the_same_bits(files, shuffle):
    transport = connect()
    streamed, in_memory = (weights(transport, files, stream=how, shuffle=shuffle) for how in ("yes", "no"))
    assert streamed[0] == "streamed" and in_memory[0] == "private" and streamed[1:] == in_memory[1:]
    # The second half needs nothing of the first.
    assert weights(transport, files, 7, stream="yes", shuffle=shuffle)[2] == streamed[2][7 * 30 :]
