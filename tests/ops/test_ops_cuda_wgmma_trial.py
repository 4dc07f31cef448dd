"""wgmma is offered where a child process has passed it: verdicts, and what is compared. The child is a stand-in, as a
trap needs a device; what it would compute is run on the host's device."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda import choice, gemm, wgmma, wgmma_trial
from ringtrain.ops.cuda.runtime import Facts
from ringtrain.ops.cuda.wgmma_trial import ask
from tests.fakes.fake_cupy import FakeCupy
from tests.ops.cuda_support import device_runtime, on_device
from tests.says import says

FACTS = Facts("H100", (9, 0), 132, 232448, (13, 0), (13, 0), "GPU-1")
TRAP = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    monkeypatch.setattr(wgmma_trial, "import_cupy", FakeCupy)


def python(program):
    return [sys.executable, "-c", program]


def compared(why):
    return f"import sys; print({why!r}, file=sys.stderr); sys.exit({wgmma_trial.FAILED})"


@pytest.mark.parametrize(
    ("program", "why", "is_kept"),
    [
        ("pass", "", True),
        (TRAP, "ended by signal 4", True),
        (compared("at: differs"), "at: differs", True),
        ("import no_such_module", says("ModuleNotFoundError: No module named 'no_such_module'"), False),
        ("import sys; print('in use', file=sys.stderr); sys.exit(2)", says("in use"), False),
        ("import os; os.kill(os.getpid(), 15)", says("ended by signal 15"), False),
        ("import signal; signal.pause()", says("2"), False),
    ],
)
def test_a_verdict_is_kept_and_its_absence_is_not(tmp_path, program, why, is_kept):
    path = tmp_path / "folder" / "verdict.json"
    why = says(why, path) if is_kept and why else why
    assert ask(path, python(program), limit_s=2 if "pause" in program else 60) == why
    again = ask(path, python(compared("asked again")))
    assert again == (why if is_kept else says("asked again", path))


@pytest.mark.parametrize("content", ['{"wh', "{}", "[]"])
def test_a_verdict_that_was_cut_is_asked_for_again(tmp_path, content):
    path = tmp_path / "verdict.json"
    path.write_text(content)
    assert ask(path, python("pass")) == "" and ask(path, python(TRAP)) == ""


def test_a_verdict_is_of_one_gpu_driver_compiler_type_and_source(tmp_path, monkeypatch):
    cases = [(FACTS, "bfloat16"), (replace(FACTS, uuid="GPU-2"), "bfloat16"), (FACTS, "float16")]
    cases += [(replace(FACTS, driver=(13, 1)), "bfloat16")]
    names = [wgmma_trial._digest(*case) for case in cases]
    assert names == [wgmma_trial._digest(*case) for case in cases]
    version = tmp_path / "version"
    version.write_text("580.1")
    monkeypatch.setattr(wgmma_trial, "DRIVER", version)
    names.append(wgmma_trial._digest(*cases[0]))
    monkeypatch.setattr(wgmma_trial, "__file__", str(tmp_path / "another.py"))
    names.append(wgmma_trial._digest(*cases[0]))
    assert len(set(names)) == 6


@pytest.mark.parametrize(
    ("outcome", "other"),
    [(("a trap", True), "a trap"), (("", True), ""), (("no context", False), says("tried", "verdict"))],
)
def test_two_ranks_that_ask_at_once_start_one_child(tmp_path, monkeypatch, outcome, other):
    """The child runs until both ranks have asked for the lock."""
    answers, children, second, flock = [], [], threading.Event(), wgmma_trial.fcntl.flock

    def locked(file, how):
        if how == wgmma_trial.fcntl.LOCK_EX:
            second.set()
        flock(file, how)

    def run(child, limit_s, path):
        children.append(child)
        assert second.wait(60)
        return outcome

    monkeypatch.setattr(wgmma_trial.fcntl, "flock", locked)
    monkeypatch.setattr(wgmma_trial, "run", run)
    ranks = [threading.Thread(target=lambda: answers.append(ask(tmp_path / "verdict.json", []))) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sorted(answers) == sorted([outcome[0], other]) and len(children) == 1


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "verdict.json"
    for program, why in (("pass", ""), (compared("differs"), says("differs", path))):
        assert ask(path, python(program)) == why


@pytest.mark.parametrize(
    ("precision", "capability", "setting", "wanted"),
    [
        ("bfloat16", (9, 0), "", {"wgmma": "why"}),
        ("float16", (9, 0), "cudnn", {"wgmma": "why"}),
        ("float32", (9, 0), "", {}),
        ("bfloat16", (8, 0), "", {}),
        ("bfloat16", (10, 0), "", {}),
        ("bfloat16", (9, 0), "cublas, WGMMA", {}),
    ],
)
def test_a_trial_is_made_where_wgmma_would_be_offered(monkeypatch, precision, capability, setting, wanted):
    monkeypatch.setattr(wgmma_trial, "facts_of", lambda index: replace(FACTS, capability=capability))
    monkeypatch.setattr(wgmma_trial, "ask", lambda *_: "why")
    monkeypatch.setenv(choice.SETTING, setting)
    assert wgmma_trial.left_out(0, precision) == wanted


def test_the_child_without_a_device_gives_no_verdict():
    command = [sys.executable, "-m", "ringtrain.ops.cuda.wgmma_trial", "0", "bfloat16"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden)
    assert done.returncode == wgmma_trial.NO_VERDICT and "--device cuda" in done.stderr


# ── what the child compares ───────────────────────────────────────────────────────────────────────────────────────
@on_device
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float16", marks=pytest.mark.thorough)])
def test_products_of_each_layout_and_convolutions_of_each_pass_are_compared(precision):
    layouts, results, passes = 4, 2, 3
    wanted = (layouts * results + passes) * len(wgmma.TILES)
    assert wgmma_trial.compare(device_runtime(), precision) == wanted


@on_device
@pytest.mark.usefixtures("hopper")
def test_a_product_that_differs_fails_the_trial(monkeypatch):
    monkeypatch.setattr(gemm.WgmmaProduct, "__call__", lambda self, *_: None)
    with pytest.raises(DeviceError, match=r"product by wgmma 128x256 differs from own by more than 0\.03 of the norm"):
        wgmma_trial.compare(device_runtime(), "bfloat16")


def test_the_child_ends_by_what_it_saw(monkeypatch, capsys):
    def fails(runtime, precision):
        raise DeviceError("a trap")

    monkeypatch.setattr(wgmma_trial, "make_runtime", lambda index: None)
    for compare, code in ((lambda *_: 33, 0), (fails, wgmma_trial.FAILED)):
        monkeypatch.setattr(wgmma_trial, "compare", compare)
        assert wgmma_trial.main("0", "bfloat16") == code
    assert capsys.readouterr().err == "a trap\n"
