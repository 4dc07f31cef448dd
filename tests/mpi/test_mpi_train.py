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
from tests.data.image_makers import bad_folder, shards
from tests.mpi.conftest import NET, PATIENCE_S, ROOT
from tests.runs import records
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi

EVALUATE, PREDICT = ["-m", "ringtrain", "evaluate"], ["-m", "ringtrain", "predict"]
BAD = re.compile("(.*?) (?:could|changed)")  # the name of an image, in its problem
EPOCHS = 1_000_000  # no machine comes to the end of them before a test ends the run


def arguments(net, out, *more):
    flags = ["--model", net, "--data", "digits", "--ops", "reference", "--out", out, *more]
    return ["-m", "ringtrain", "train", *map(str, flags)]


def losses(out):
    return [record["loss"] for record in records(out, "iteration")]


def test_nothing_is_left_in_shared_memory(alone, mpirun, net, tmp_path):
    """Open MPI leaves a file there where a process runs alone."""
    folder = tmp_path / "shm"
    folder.mkdir()
    setting = {"OMPI_MCA_btl_sm_backing_directory": str(folder)}
    looked = "import os; from mpi4py import MPI; MPI.COMM_WORLD.barrier(); print(len(os.listdir(os.environ['WHERE'])))"
    if "0" in mpirun(2, ["-c", looked], WHERE=str(folder), **setting).stdout.split():
        pytest.skip("this MPI keeps no files there")
    for number, start in enumerate((alone, partial(mpirun, 3))):
        done = start(arguments(net, tmp_path / f"out{number}", "--iterations", 2), **setting)
        assert done.returncode == 0 and os.listdir(folder) == [], done.stderr


@pytest.mark.parametrize("ranks", [3, *thorough(1, 2, 4, 5)])
def test_a_run_leaves_its_folder_and_every_rank_agrees(mpirun, net, tmp_path, ranks):
    out = tmp_path / "out"
    done = mpirun(ranks, arguments(net, out, "--iterations", 26), PYTHONPATH=str(ROOT))  # curves are drawn
    assert done.returncode == 0, done.stderr
    (end,) = records(out, "end")
    assert (end["iterations"], end["ranks"], end["reason"]) == (26, ranks, "done")
    assert end["test_accuracy"] > 0.5 and end["images_per_s"] > 0 and len(end["weights_sha256"]) == 64
    assert len(losses(out)) == 26
    names = {"config.toml", "log.jsonl", "outcome.json", "curves.png", "checkpoints", ".lock"}
    assert {path.name for path in out.iterdir()} == names
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


def digest(done, out):
    """The sha256 of the weights at the end of a run."""
    assert done.returncode == 0, done.stderr
    return records(out, "end")[-1]["weights_sha256"]


def test_a_reproducible_run_is_the_same_on_1_2_and_3_ranks(mpirun, net, tmp_path):
    """With threads set, other buckets, over messages, and gone on with at another number: one hash."""

    def hashed(ranks, name, *more, threads="1"):
        out = tmp_path / name
        line = arguments(net, out, "--reproducible", "--ops", "cpu", "--bucket-bytes", 500 * ranks, *more)
        return digest(mpirun(ranks, line, OMP_NUM_THREADS=threads, OPENBLAS_NUM_THREADS=threads), out)

    hashed(2, "parts", "--iterations", 3, threads="4")
    wanted = hashed(1, "parts", "--iterations", 8, "--resume", "auto")
    assert hashed(3, "three", "--iterations", 8, "--algorithm", "canonical") == wanted


def test_images_of_tar_shards_train_to_the_same_weights_on_1_and_3_ranks(alone, mpirun, net, tmp_path):
    """With all that changes images, each drawn by key, over a tail and the end of an epoch."""
    model = NET.replace("[8, 8, 1]", "[12, 12, 3]").replace('mean = "image"', 'mean = "channel"')
    net.write_text(model.replace("units = 10", "units = 3"))
    options = "--batch 16 --iterations 7 --reproducible --random-resized-crop 0.3:1 --colour-jitter 0.4,0.4,0.4,0.1 "
    options += "--trivial-augment --mixup 0.2 --cutmix 1 --random-erasing 0.5 --ops cpu"
    pattern = shards(tmp_path, count=3, each=14)

    def hashed(run, out):
        return digest(run(arguments(net, out, "--data", pattern, *options.split())), out), losses(out)

    assert hashed(alone, tmp_path / "one") == hashed(partial(mpirun, 3), tmp_path / "three")


def test_bad_images_are_skipped_alike_on_1_2_and_3_ranks(alone, mpirun, net, tmp_path):
    """The same losses and names, also from a stop within an epoch on; `data check` lists the same files."""
    bad, bad_test = (bad_folder(tmp_path / "photos" / part, count) for part, count in (("train", 24), ("test", 4)))
    net.write_text(NET.replace("[8, 8, 1]", "[12, 12, 3]").replace("units = 10", "units = 2"))
    options = "--batch 10 --reproducible --ops cpu --bad-images skip --mixup 0.2 --iterations"

    def trained(run, out, iterations, *more):
        done = run(arguments(net, out, "--data", tmp_path / "photos", *options.split(), iterations, *more))
        scores = [(each["test_loss"], each["test_accuracy"]) for each in records(out, "epoch")]
        texts = [text for note in records(out, "note") for text in note["lines"] or ()]
        return digest(done, out), losses(out), scores, {BAD.match(text)[1] for text in texts}

    one = trained(alone, tmp_path / "one", 9)
    assert one[3] == {*bad, *bad_test} and len(one[1]) == 9 and len(one[2]) == 2
    trained(partial(mpirun, 2), tmp_path / "stopped", 2)
    assert trained(partial(mpirun, 3), tmp_path / "stopped", 9, "--resume", "auto") == one
    check = mpirun(2, ["-m", "ringtrain", "data", "check", str(tmp_path / "photos")])
    problems = [line.removeprefix("  - ") for line in check.stderr.splitlines() if line.startswith("  - ")]
    assert check.returncode == 1 and [BAD.match(text)[1] for text in problems] == [*bad, *bad_test]
    scored = alone([*EVALUATE, str(tmp_path / "one"), "--json"])
    assert json.loads(scored.stdout)["examples"] == 4 and bad_test[0] in scored.stderr


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


# ── faults, of which one rank tells ───────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def fails(mpirun):
    """fails(ranks, arguments of python, exit code, words that are told once)"""

    def start(ranks, line, code, words):
        done = mpirun(ranks, line)
        assert done.returncode == code and done.stderr.count("ringtrain: ") == 1, done.stderr
        assert words.matches(done.stderr) and (code == 1 or "Traceback" not in done.stderr)

    return start


def beside(ranks, *words):
    """The arguments of mpirun for further ranks with another command."""
    return [":", "-np", str(ranks), *words[:-1], sys.executable, *words[-1]]


def test_a_loss_that_is_not_finite_names_iteration_and_layer(fails, net, tmp_path):
    words = says("--lr", "--warmup", "--clip-norm", "--resume", f"{math.nan:g}", 2, "'fc'")
    fails(2, arguments(net, tmp_path / "out", "--lr", "1e30", "--iterations", 20), 3, words)


def test_ranks_that_were_told_different_things_are_named(fails, net, tmp_path):
    one, other = (arguments(net, tmp_path / "out", "--seed", seed) for seed in (1, 2))
    fails(1, [*one, *beside(2, other)], 2, says("seed", "1 on rank 0; 2 on ranks 1, 2"))
    other = ["-m", "ringtrain", "evaluate", str(tmp_path)]
    fails(2, [*one, *beside(1, other)], 2, says("command", '"train" on ranks 0, 1; "evaluate" on rank 2'))


def test_files_that_one_rank_lacks_are_named(fails, net, tmp_path):
    (tmp_path / "img" / "a").mkdir(parents=True)
    (tmp_path / "img" / "a" / "1.png").write_bytes(b"")
    command = ["-m", "ringtrain", "train", "--data", "img", "--model", str(net), "--out", str(tmp_path / "out")]
    fails(1, [*command, *beside(1, "-wdir", str(tmp_path), command)], 2, says("img", "rank 1", "rank 0"))
    command = arguments(net, tmp_path / "out")
    lacking = [*command, "--config", str(tmp_path / "none.toml")]
    fails(1, [*command, *beside(1, lacking)], 2, says("rank 1", "run file"))


# The others wait for the last rank in a barrier.
DEFECT = """
from ringtrain.cli.world import in_world
in_world(lambda world: 1 / (world.rank != world.size - 1) and world.barrier())
"""


def test_a_wrong_flag_is_told_once_and_a_defect_on_one_rank_ends_all(mpirun, fails, net, tmp_path):
    done = mpirun(3, arguments(net, tmp_path / "out", "--batch", "many"))
    assert done.returncode == 2 and done.stderr.count("'many' is not a valid integer") == 1
    fails(3, ["-c", DEFECT], 1, says("ringtrain: rank 2 failed:", "ZeroDivisionError: division by zero"))


def test_predictions_and_scores_are_the_same_at_any_number_of_ranks(mpirun, alone, net, tmp_path):
    out = tmp_path / "out"
    assert alone(arguments(net, out, "--iterations", 30)).returncode == 0
    score, (end,) = json.loads(mpirun(3, [*EVALUATE, out, "--json"]).stdout), records(out, "end")
    assert score["accuracy"] == end["test_accuracy"]
    assert score["loss"] == pytest.approx(end["test_loss"], rel=1e-6)
    texts = []
    for start, file in ((alone, tmp_path / "p1.csv"), (partial(mpirun, 3), tmp_path / "p3.csv")):
        assert start([*PREDICT, out, "-o", file]).returncode == 0
        texts.append(file.read_text())
    assert len(texts[0].splitlines()) == 361 and texts[0] == texts[1]


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
    command = [*PREDICT, tmp_path / "out", photos, "--top", "3"]
    one, four = alone(command), mpirun(4, command)
    assert one.stdout == four.stdout and len(one.stdout.splitlines()) == count + 1
    for done in (one, four):
        assert done.returncode == 1 and done.stderr.count("ringtrain:") == 1
        assert says("1", f"{count + 1:,}", photos / "bad.png").matches(done.stderr)


def test_a_second_ctrl_c_leaves_no_file_of_one_process_in_shared_memory(alone):
    done = alone(["interrupted_twice.py"], OMPI_MCA_btl="self,sm")
    assert done.returncode == 130, done.stderr
    paths = done.stdout.split()
    assert paths and not [path for path in paths if Path(path).exists()]


def test_a_steady_iteration_allocates_no_array_on_any_rank(mpirun):
    """Neither where gradients are clipped, nor where norms of parameters are summed."""
    done = mpirun(2, ["allocates.py", "digits"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(" rank 0 of 2 " in line and " 0 arrays, " in line for line in lines), done.stdout
    for way in ("--clip-norm", "--optimizer lars", "--optimizer lamb", "--sync sharded", "--fc hybrid"):
        assert any(way in line for line in lines), done.stdout


def test_the_doctor_looks_at_two_ranks_together(mpirun, tmp_path):
    done = mpirun(2, ["-m", "ringtrain", "doctor", "--device", "cpu", "--path", tmp_path, "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    assert not any(line["ranks"] for line in lines.values()), lines  # they agree in all
    assert lines["ranks"]["text"].startswith("2 ranks on 1 node: ")
    assert lines["disk"]["status"] in ("ok", "warn") and not list(tmp_path.iterdir())
