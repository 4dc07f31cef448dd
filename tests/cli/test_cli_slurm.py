"""`ringtrain slurm`: what it writes, and what it finds before a job waits in a queue."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ringtrain.cli.main import run
from tests.says import says

FAR = ("--model", "lenet", "--data", "far.h5")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(capsys, *arguments) -> str:
    assert run(["slurm", *arguments]) == 0
    return capsys.readouterr().out


def lines(text: str) -> list[str]:
    return [line.partition("  #")[0].strip() for line in text.splitlines() if line.startswith("#SBATCH")]


def test_the_lines_of_a_job(capsys):
    flags = ["-N2", "--gpus", "4", "-t", "1-12", "-p", "gpu", "-A", "me", "--qos", "high", "-J", "own", "--mem", "64G"]
    more = ["--cpus-per-task", "8", "--sbatch=--constraint=a100", "--sbatch", "--mail-type=END"]
    arguments = ["--", "--device", "cuda", "--synthetic", "--model", "resnet20", "--batch", "256"]
    directives = (
        "job-name=own nodes=2 ntasks-per-node=4 gpus-per-node=4 cpus-per-task=8 mem=64G time=1-12 partition=gpu "
        "account=me qos=high output=%x-%j.log open-mode=append requeue signal=B:USR1@120 no-kill constraint=a100 "
        "mail-type=END"
    )
    assert lines(written(capsys, *flags, *more, *arguments)) == [f"#SBATCH --{each}" for each in directives.split()]


def test_scripts_of_a_bench_a_command_a_site_and_a_run_that_survives_deaths(capsys, tmp_path):
    directives = lines(written(capsys, "bench", "--ranks-per-node", "8", "--", "--end", "64M"))
    assert "#SBATCH --ntasks-per-node=8" in directives and "#SBATCH --job-name=ringtrain-bench" in directives
    assert not any("requeue" in line or "signal" in line for line in directives)
    text = written(
        capsys, "run", "-N2", "--venv", "env", "--", "python", "-m", "ringtrain.torch", "my job.py", "-t", "3"
    )
    assert "flags=(python -m ringtrain.torch 'my job.py' -t 3 \"$@\")" in text.splitlines()
    directives = lines(text)
    assert "#SBATCH --job-name=ringtrain-run" in directives
    others = [line for line in lines(written(capsys)) if line not in directives]
    assert others == ["#SBATCH --job-name=ringtrain", "#SBATCH --nodes=1"]
    text = written(
        capsys, "--module", "gcc", "--module", "openmpi/5.0", "--venv", "/home/me/venv", "--launcher", "srun"
    )
    for setting in ("MODULES:-gcc openmpi/5.0", "VENV:-/home/me/venv", "LAUNCHER:-srun", "CONTAINER:-"):
        assert f'="${{RINGTRAIN_{setting}}}"' in text
    (tmp_path / "run.toml").write_text('elastic = "replace"')
    for flags in (["--elastic"], ["--config", str(tmp_path / "run.toml")]):
        assert run(["slurm", "--", *flags]) == 0
        assert 'launcher_flags="${RINGTRAIN_LAUNCHER_FLAGS:---with-ft ulfm}"' in capsys.readouterr().out
    assert run(["slurm"]) == 0
    assert 'launcher_flags="${RINGTRAIN_LAUNCHER_FLAGS:-}"' in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("words", [["train"], ["bench"], ["run", "--", "hostname"]], ids=" ".join)
def test_a_script_is_one_that_bash_reads_to_its_end(capsys, words):
    text = written(capsys, *words)
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    done = subprocess.run(["bash", "-s"], input=text, text=True, capture_output=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 2 and "this is a job for Slurm" in done.stderr


def test_characters_that_a_terminal_acts_on_are_escapes_of_the_shell(capsys):
    words = ["it's $HOME", "a\x1b[31m\n", "it's \u202e\\x", "é", "\udcff"]
    text = written(capsys, "run", "--", "echo", *words)
    (line,) = [line for line in text.splitlines() if line.startswith("flags=")]
    assert line.isprintable()
    if shutil.which("bash"):
        command = ["bash", "-c", f"{line}; printf '%s\\0' \"${{flags[@]}}\""]
        output = subprocess.run(command, stdout=subprocess.PIPE).stdout
        assert output.split(b"\0")[1:-1] == list(map(os.fsencode, words))
    assert run(["slurm", "--sbatch=--comment=\x1b[31m"]) == 2


def test_a_file_is_written_whole_and_not_over_another(capsys, tmp_path):
    assert written(capsys, "-o", "job.sbatch") == "job.sbatch is written: submit it with sbatch job.sbatch\n"
    assert os.access("job.sbatch", os.X_OK)
    (tmp_path / "job.sbatch").write_text("mine")
    assert run(["slurm", "-o", "job.sbatch"]) == 2
    assert says("--output", "--force", "job.sbatch").matches(capsys.readouterr().err)
    assert (tmp_path / "job.sbatch").read_text() == "mine"
    written(capsys, "-o", "job.sbatch", "--force", "bench")
    assert "bench-allreduce" in (tmp_path / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], says("'trian'")),
        (["run"], says("python", "torch")),
        (["--", "--modell", "x"], says("--modell", "No such option")),
        (["bench", "--", "--endd", "1M"], says("--endd", "No such option")),
        (["--", "--model", "lennet"], says("did you mean 'lenet'?")),
        (["--", "--config", "none.toml"], says("none.toml")),
        (["--", "--model", "lenet"], says("--data", "--synthetic", "'lenet'")),
        (["--", "--device", "cuda"], says("--device", "--gpus")),
        (["-N2", "--ranks-per-node", "3", "--", "--batch", "5"], says("--batch", 5, 6)),
        (
            ["-N2", "--gpus", "4", "--", "--model", "resnet20", "--data", "far.h5", "--device", "cuda"],
            says("--batch", "--batch-norm", 128, 4, 32, 8),
        ),
        (["-N4", "--ranks-per-node", "4", "--", "--reproducible"], says("--reproducible", "--shards", 8, 16)),
        (["--", "--batch-norm", "sync"], "is for networks with batch normalisation, and model 'digits' has none"),
        (
            ["--", "--trust-coefficient", "0.1"],
            says("--trust-coefficient 0.1", "--optimizer lars", "--optimizer adamw", "used", "uses"),
        ),
        (["--", "--warmup", "100000", "--epochs", "1"], says("--warmup 100000", "100,000 iterations")),
        (["--", "--model", "lenet", "--synthetic", "--lr-policy", "multistep"], says("multistep", "rising")),
        (["--", "--lr-policy", "step", "--lr-steps", "1,2"], says([1, 2])),
        (["--", *FAR, "--lr-policy", "multistep", "--lr-steps", "2ep,1ep"], says(["2ep", "1ep"])),
        (["--", *FAR, "--warmup", "90", "--iterations", "80"], says("80", "--iterations 80")),
        (["--time", "soon"], says("--time", "soon")),
        (["--mem", "lots"], says("--mem", "lots")),
        (["-p", "a b"], says("partition", "'a b'")),
        (["--venv", "$(reboot)"], says("venv", "'$(reboot)'")),
        (["--module", 'a"b'], says("module", "'a\"b'")),
        (["--sbatch", "constraint=a100"], says("--sbatch", "--constraint", "'constraint=a100'")),
        (["--sbatch", "-x\nreboot"], says("--sbatch", "--constraint")),
        (["--launcher", "srun", "--", "--elastic"], says("--elastic", "--launcher")),
        (["--container", "i.sif", "--venv", "v"], says("--container", "--venv")),
    ],
)
def test_mistakes_are_found_before_the_queue(capsys, words, message):
    assert run(["slurm", *words]) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err) and captured.out == ""


def test_data_that_are_here_are_checked_before_the_queue(capsys):
    images, labels = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 3
    np.savez("three.npz", x=images, y=labels)
    np.savez("wide.npz", x=np.zeros((6, 8, 9, 3), np.uint8), y=labels)
    for name in ("three", "wide"):
        assert run(["data", "make", f"{name}.npz", "-o", f"{name}.h5"]) == 0
    Path("text.h5").write_text("no data")
    capsys.readouterr()
    for words, message in (
        (["--data", "three.h5"], "3 classes: use another data set, --classes 3, or a model that ends in"),
        (["--data", "wide.h5"], "has examples of 8x9x3, but model 'digits' takes 8x8x1"),
        (["--data", "text.h5"], "text.h5 is not an HDF5 file"),
        (["--batch", "2000"], "--batch 2000 is more than the 1437 training examples"),
    ):
        assert run(["slurm", "--", *words]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.out == ""
    for words, code in (
        ("-- --data digits --batch 1437", 0),
        ("--ranks-per-node 4 -- --sync server --dedicated --batch 3", 0),
        ("--ranks-per-node 4 -- --sync server --batch 3", 2),
    ):
        assert run(["slurm", *words.split()]) == code


@pytest.mark.parametrize(
    "flags",
    [
        [*FAR, "--warmup", "100000", "--epochs", "1"],
        [*FAR, "--lr-policy", "multistep", "--lr-steps", "0.01ep,0.02ep"],
        [*FAR, "--lr-policy", "multistep", "--lr-steps", "5,1ep"],
        ["--resume", "far", "--lr-policy", "multistep"],
        ["--warmup", "5ep", "--epochs", "6", "--lr-policy", "step", "--lr-steps", "2ep"],
    ],
    ids=" ".join,
)
def test_a_schedule_that_may_be_right_is_left_to_the_run(flags):
    assert run(["slurm", "--", *flags]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "1"], says("GPUs", "--device cuda")),
        (["--", "--model", "lenet", "--data", "far.h5"], says("far.h5")),
        (["--", "--elastic"], says("--elastic", "--with-ft")),
        (["--container", "far.sif"], says("far.sif")),
        (["run", "--", "farprogram"], says("farprogram")),
        (["run", "--", "sh", "far.py", "none.py"], says("far.py")),
        (["run", "--container", "far.sif", "--", "farprogram"], says("far.sif")),
    ],
)
def test_what_may_be_right_on_the_nodes_is_only_said(capsys, words, message):
    assert run(["slurm", *words]) == 0
    assert re.fullmatch(f"ringtrain: {message}\n", capsys.readouterr().err)
