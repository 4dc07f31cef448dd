"""`ringtrain train` under real mpirun: numbers of ranks, resuming, signals, deaths, and errors that one rank has."""

import json
import math
import os
import re
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from ringtrain.data.file.dataset import open_dataset
from tests.data.image_makers import shards
from tests.mpi.conftest import PATIENCE_S, ROOT
from tests.runs import records
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi

EPOCHS = 1_000_000  # no machine comes to the end of them before a test ends the run

NET = """
summary = "for tests"
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "conv", kind = "Conv2D", channels = 6, kernel = 3, pad = 1 },
  { name = "relu", kind = "ReLU" },
  { name = "pool", kind = "MaxPool", kernel = 2, stride = 2 },
  { name = "flat", kind = "Flatten" },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "fc", kind = "Linear", units = 10 },
]
[recipe]
batch = 60
lr = 0.02
momentum = 0.9
"""


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(NET)
    return path


def arguments(net, out, *more):
    given = ["--model", net, "--data", "digits", "--ops", "reference", "--out", out, *more]
    return ["-m", "ringtrain", "train", *map(str, given)]


def losses(out):
    return [record["loss"] for record in records(out, "iteration")]


def test_nothing_is_left_in_shared_memory(alone, mpirun, net, tmp_path):
    """Open MPI leaves a file there where a process runs alone."""
    (tmp_path / "shm").mkdir()
    kept = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path / "shm")}
    looked = "import os; from mpi4py import MPI; MPI.COMM_WORLD.barrier(); print(len(os.listdir(os.environ['WHERE'])))"
    seen = mpirun(2, ["-c", looked], WHERE=str(tmp_path / "shm"), **kept)
    if "0" in seen.stdout.split():
        pytest.skip("this MPI keeps no files there")
    for number, start in enumerate((alone, lambda given, **more: mpirun(3, given, **more))):
        done = start(arguments(net, tmp_path / f"out{number}", "--iterations", 2), **kept)
        assert done.returncode == 0 and os.listdir(tmp_path / "shm") == [], done.stderr


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2, 4, 5)])
def test_a_run_leaves_its_folder_and_every_rank_agrees(mpirun, net, tmp_path, ranks):
    done = mpirun(ranks, arguments(net, tmp_path / "out", "--iterations", 26), PYTHONPATH=str(ROOT))  # curves are drawn
    assert done.returncode == 0, done.stderr
    (end,) = records(tmp_path / "out", "end")
    assert (end["iterations"], end["ranks"], end["reason"]) == (26, ranks, "done")
    assert end["test_accuracy"] > 0.5 and end["images_per_s"] > 0 and len(end["weights_sha256"]) == 64
    assert len(losses(tmp_path / "out")) == 26
    held = {"config.toml", "log.jsonl", "outcome.json", "curves.png", "checkpoints", ".lock"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == held
    assert len(done.stdout.split("preparing ")[0].strip().splitlines()) <= 12  # the header


@pytest.mark.thorough
@pytest.mark.parametrize("numbers", [(3,), (2, 4)])
def test_default_kernels_train_the_same_on_1_to_4_ranks(mpirun, alone, net, tmp_path, numbers):
    """Compiled ones, by the first run where nobody has before; exchanged as is by default."""

    def trained(run, out):
        done = run(arguments(net, tmp_path / out, "--ops", "cpu", "--dtype", "float64", "--iterations", 30))
        assert done.returncode == 0, done.stderr
        (begun,) = records(tmp_path / out, "start")
        assert begun["exact"] and begun["strategy"].startswith("allreduce (auto")
        return losses(tmp_path / out)

    one = trained(alone, "one")
    for ranks in numbers:
        assert trained(partial(mpirun, ranks), str(ranks)) == pytest.approx(one, rel=1e-9)


def test_a_reproducible_run_is_the_same_on_1_2_and_3_ranks(mpirun, net, tmp_path):
    """With threads set, other buckets, over messages, and gone on with at another number: one hash."""

    def hashed(ranks, out, *more, threads="1"):
        given = arguments(net, tmp_path / out, "--reproducible", "--ops", "cpu", "--bucket-bytes", 500 * ranks, *more)
        done = mpirun(ranks, given, OMP_NUM_THREADS=threads, OPENBLAS_NUM_THREADS=threads)
        assert done.returncode == 0, done.stderr
        (end,) = records(tmp_path / out, "end")
        return end["weights_sha256"]

    hashed(2, "parts", "--iterations", 3, threads="4")
    wanted = hashed(1, "parts", "--iterations", 8, "--resume", "auto")
    assert hashed(3, "three", "--iterations", 8, "--algorithm", "canonical") == wanted


def test_images_of_tar_shards_train_to_the_same_weights_on_1_and_3_ranks(alone, mpirun, tmp_path):
    """With all that changes images, each drawn by key, over a tail and the end of an epoch."""
    model = NET.replace("[8, 8, 1]", "[12, 12, 3]").replace('mean = "image"', 'mean = "channel"')
    model = model.replace("units = 10", "units = 3")
    (tmp_path / "net.toml").write_text(model)
    pattern = shards(tmp_path, count=3, each=14)
    options = "--batch 16 --iterations 7 --reproducible --random-resized-crop 0.3:1 --colour-jitter 0.4,0.4,0.4,0.1 "
    options += "--mixup 0.2 --cutmix 1 --random-erasing 0.5"

    def hashed(run, out):
        given = ["--model", tmp_path / "net.toml", "--data", pattern, "--out", tmp_path / out, *options.split()]
        done = run(["-m", "ringtrain", "train", *map(str, given)])
        assert done.returncode == 0, done.stderr
        (end,) = records(tmp_path / out, "end")
        return end["weights_sha256"], losses(tmp_path / out)

    assert hashed(alone, "one") == hashed(partial(mpirun, 3), "three")


def read_until(process, text):
    """Lines of output up to one that has ``text``."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    pytest.fail(f"no {text!r} in:\n{''.join(lines)}")


def ranks_of(process):
    """Process numbers of the ranks that an mpirun started."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in children]


def lives(number, patience_s=PATIENCE_S):
    """Whether a process is there, and does not end: mpirun kills ranks and may be gone before they are."""
    try:
        process = os.pidfd_open(number)
    except ProcessLookupError:
        return False
    ended, _, _ = select.select([process], [], [], patience_s)
    os.close(process)
    return not ended


@pytest.mark.timing
def test_a_signal_ends_the_run_with_a_checkpoint_that_goes_on(mpirun, mpirun_process, net, tmp_path):
    process = mpirun_process(2, arguments(net, tmp_path / "out", "--epochs", EPOCHS))
    read_until(process, f" 2/{EPOCHS}")
    process.send_signal(signal.SIGUSR1)  # mpirun hands it to all ranks
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, rest
    (end,) = records(tmp_path / "out", "end")
    assert end["reason"] == "interrupted" and "--resume auto" in rest
    more = end["iterations"] + 5
    assert mpirun(3, arguments(net, tmp_path / "out", "--iterations", more, "--resume", "auto")).returncode == 0
    assert [r["iteration"] for r in records(tmp_path / "out", "iteration")] == list(range(1, more + 1))


def test_a_loss_that_is_not_finite_names_iteration_and_layer(mpirun, net, tmp_path):
    done = mpirun(2, arguments(net, tmp_path / "out", "--lr", "1e30", "--iterations", 20))
    assert done.returncode == 3
    assert re.search(says("--lr", "--warmup", "--clip-norm", "--resume", f"{math.nan:g}", 2), done.stderr)
    assert re.search(says("'fc'"), done.stderr)
    assert done.stderr.count("ringtrain:") == 1


def test_ranks_that_were_told_different_things_are_named(mpirun, net, tmp_path):
    one, other = (arguments(net, tmp_path / "out", "--seed", seed) for seed in (1, 2))
    done = mpirun(1, [*one, ":", "-np", "2", sys.executable, *other])
    assert done.returncode == 2
    seed = says("seed", "1 on rank 0; 2 on ranks 1, 2")
    assert says(seed).matches(done.stderr)


def test_ranks_that_run_different_commands_are_named(mpirun, net, tmp_path):
    training, command = arguments(net, tmp_path / "out"), ["-m", "ringtrain", "evaluate", str(tmp_path)]
    done = mpirun(2, [*training, ":", "-np", "1", sys.executable, *command])
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("ringtrain: ") == 1
    other = says("command", '"train" on ranks 0, 1; "evaluate" on rank 2')
    assert says(other).matches(done.stderr)


def test_images_that_one_rank_lacks_are_named(mpirun, net, tmp_path):
    (tmp_path / "img" / "a").mkdir(parents=True)
    (tmp_path / "img" / "a" / "1.png").write_bytes(b"")
    command = ["-m", "ringtrain", "train", "--data", "img", "--model", str(net), "--out", str(tmp_path / "out")]
    done = mpirun(1, [*command, ":", "-np", "1", "-wdir", str(tmp_path), sys.executable, *command])
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("ringtrain: ") == 1
    assert says("img", "rank 1", "rank 0").matches(done.stderr)


def test_a_wrong_flag_is_told_once(mpirun, net, tmp_path):
    done = mpirun(3, arguments(net, tmp_path / "out", "--batch", "many"))
    assert done.returncode == 2
    assert done.stderr.count("'many' is not a valid integer") == 1


def test_a_file_that_one_rank_lacks_ends_all(mpirun, net, tmp_path):
    here = arguments(net, tmp_path / "out")
    there = [*here[:-4], "--ops", "reference", "--out", str(tmp_path / "out"), "--config", str(tmp_path / "none.toml")]
    done = mpirun(1, [*here, ":", "-np", "1", sys.executable, *there])
    assert done.returncode == 2
    assert done.stderr.count("ringtrain:") == 1 and says("rank 1", "run file").matches(done.stderr)


def test_a_defect_on_one_rank_ends_all(mpirun):
    done = mpirun(3, ["one_rank_raises.py"])
    assert done.returncode == 1
    assert "ringtrain: rank 2 failed:" in done.stderr and "ZeroDivisionError: a defect" in done.stderr


def test_predictions_and_scores_are_the_same_at_any_number_of_ranks(mpirun, alone, net, tmp_path):
    out = tmp_path / "out"
    assert alone(arguments(net, out, "--iterations", 30)).returncode == 0
    score, (end,) = (
        json.loads(mpirun(3, ["-m", "ringtrain", "evaluate", str(out), "--json"]).stdout),
        records(out, "end"),
    )
    assert score["accuracy"] == end["test_accuracy"]
    assert score["loss"] == pytest.approx(end["test_loss"], rel=1e-6)
    files = [tmp_path / "p1.csv", tmp_path / "p3.csv"]
    for file, start in zip(files, (alone, partial(mpirun, 3)), strict=True):
        assert start(["-m", "ringtrain", "predict", str(out), "-o", str(file)]).returncode == 0
    assert len(files[0].read_text().splitlines()) == 361
    assert files[0].read_text() == files[1].read_text()


@pytest.mark.parametrize("count", [60, *thorough(1000)])
def test_files_give_the_same_lines_at_any_number_of_ranks(mpirun, alone, net, tmp_path, count):
    """Files of many sizes without labels, one of which is none; to standard output."""
    images, photos = open_dataset("digits").train.images, tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for i in range(count):
        image = Image.fromarray(images[i % len(images), ..., 0]).resize((8 + i % 5, 8 + i % 7))
        image.save(photos / f"{'more/' if i % 3 else ''}{i}.{'png' if i % 2 else 'jpg'}")
    (photos / "bad.png").write_text("no image")
    assert alone(arguments(net, tmp_path / "out", "--iterations", 30)).returncode == 0
    command = ["-m", "ringtrain", "predict", str(tmp_path / "out"), str(photos), "--top", "3"]
    one, four = alone(command), mpirun(4, command)
    assert one.stdout == four.stdout and len(one.stdout.splitlines()) == count + 1
    assert (one.returncode, four.returncode) == (1, 1)
    for done in (one, four):
        assert says("1", f"{count + 1:,}", photos / "bad.png").matches(done.stderr)
        assert done.stderr.count("ringtrain:") == 1


def test_a_second_ctrl_c_leaves_no_file_of_one_process_in_shared_memory(alone):
    done = alone(["interrupted_twice.py"], OMPI_MCA_btl="self,sm")
    assert done.returncode == 130, done.stderr
    held = done.stdout.split()
    assert held and not [path for path in held if Path(path).exists()]
