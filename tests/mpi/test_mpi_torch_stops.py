"""Trainers of libraries that are told to stop, and go on; and a PyTorch or a library that is not as it should be."""

import importlib
import os
import re
import sys
from contextlib import nullcontext

import pytest

from ringtrain.errors import UsageError
from tests.mpi.conftest import PATIENCE_S, PROGRAMS, ROOT, run
from tests.tiers import grid, thorough

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi

PYTORCH = PROGRAMS / "pytorch"
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # with the real matplotlib
LIBRARIES = ("lightning.pytorch", "pytorch_lightning", "transformers", "accelerate")
# Averages are due in steps 5, 10 and 15, and the stop is in step 13.
STRATEGIES = {
    "DDP's reducer": [],
    "averaging": ["--sync", "averaging", "--average-every", "5", "--average-momentum", "keep"],
    "sharded": ["--sync", "sharded"],
}
# Names of reducers that DDP's methods call where no strategy comes: see ExchangeReducer.
NOT_CALLED = {"_autograd_hook", "_get_local_used_map", "_install_post_backward_futures", "_remove_autograd_hooks"}
NOT_CALLED |= {"_reset_state", "_run_comm_hook", "_set_optimizer_in_backward", "_set_sparse_metadata"}
NOT_CALLED |= {"_update_process_group", "_should_finalize_after_backward", "set_logger"}


def is_daily(library, strategy):
    return (library, strategy) == ("lightning.pytorch", "averaging")


CASES = [*grid(is_daily, LIBRARIES, STRATEGIES), *thorough(("torch", "DDP's reducer"))]


@pytest.mark.parametrize(("library", "strategy"), CASES)
def test_what_is_told_to_stop_saves_and_goes_on_to_the_same_weights(mpirun, tmp_path, library, strategy):
    """Rank 1 alone is told, in mid-period and mid-epoch; the next start goes on from the step that follows."""
    pytest.importorskip(library)
    program = ["saves.py"] if library == "torch" else ["stops.py", library]
    command = ["-W", "ignore", "-m", "ringtrain.torch", *STRATEGIES[strategy], PYTORCH / program[0], *program[1:], 16]

    def start(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return mpirun(2, [*command, tmp_path / name], PYTHONPATH=PATH)

    done = start("whole")
    assert done.returncode == 0, done.stderr
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "held").write_text("12 1")
    done = start("cut")
    assert done.returncode == 75 and "MPI_ABORT" not in done.stderr, done.stderr
    assert not (tmp_path / "cut" / "weights").exists()
    done = start("cut")
    assert done.returncode == 0 and "from step 13 on 2 ranks" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "cut" / "steps").read_text().split() == [str(step) for step in range(16)]
    assert (tmp_path / "cut" / "weights").read_text() == (tmp_path / "whole" / "weights").read_text()
    assert not (tmp_path / "cut" / "stopped" / "stopped.ckpt").exists()  # Lightning's next run begins anew


def test_a_signal_that_comes_late_leaves_the_exit_code_as_it_is():
    """Python gives signals back to the system before a process has ended."""
    signals = "Popen(['sh', '-c', f'while kill -USR1 {os.getpid()}; do :; done'], stdout=DEVNULL, stderr=DEVNULL)"
    program = f"import os; from subprocess import *; from ringtrain.torch import should_stop; should_stop(); {signals}"
    done = run([sys.executable, "-c", f"{program}; raise SystemExit(75)"], PATIENCE_S)
    assert done.returncode == 75, done.stderr


def test_a_package_that_is_missing_is_named_in_one_line(mpirun, tmp_path):
    script = tmp_path / "without.py"
    for library, package in (("lightning", "lightning"), ("transformers", "transformers")):
        names = "'lightning', 'pytorch_lightning', 'transformers'"
        script.write_text(
            f"import sys\nfor name in {names}: sys.modules[name] = None\nimport ringtrain.torch.{library}\n"
        )
        done = mpirun(1, ["-m", "ringtrain.torch", script])
        assert done.returncode == 2 and f"python -m pip install {package};" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_libraries_are_loaded_by_their_callbacks_alone():
    loaded = (
        "import sys, ringtrain.torch; assert not {'lightning', 'pytorch_lightning', 'transformers'} & {*sys.modules}"
    )
    done = run([sys.executable, "-c", loaded], PATIENCE_S)
    assert done.returncode == 0, done.stderr


def test_a_pytorch_with_another_function_is_refused_at_the_start_of_all_ranks(mpirun, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import torch.nn.utils.clip_grad as clip\nclip._get_total_norm = lambda gradients, norm_type: None\n"
    )
    path = os.pathsep.join([str(tmp_path), PATH])
    done = mpirun(2, ["-m", "ringtrain.torch", PYTORCH / "saves.py", 3, tmp_path], PYTHONPATH=path)
    words = r"PyTorch \S+ has no tensors in torch\.nn\.utils\.clip_grad\._get_total_norm, .*tried versions are .*2\.13"
    assert done.returncode == 2 and len(re.findall(words, done.stderr)) == 1, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "steps").exists()


@pytest.mark.parametrize(
    ("owner", "names", "words"),
    [
        ("Tensor", "_version _gone", r"no _gone in torch\.Tensor, on"),
        ("_gone.part", "name", r"no name in torch\._gone\.part, on"),
        ("autograd.backward", "tensors other", r"no other in torch\.autograd\.backward, on"),
        ("Tensor", "_gone|_version", None),
    ],
)
def test_a_name_that_pytorch_has_not_is_refused(monkeypatch, owner, names, words):
    private_names = importlib.import_module("ringtrain.torch.private_names")
    monkeypatch.setattr(private_names, "NAMES", {owner: names})
    with nullcontext() if words is None else pytest.raises(UsageError, match=words):
        private_names.check_names()


def test_a_strategy_knows_what_ddp_calls_of_its_reducer():
    ddp, reducer = torch.nn.parallel.DistributedDataParallel, torch.distributed.Reducer
    known = importlib.import_module("ringtrain.torch.strategy_ddp").ExchangeReducer
    codes = [function.__code__ for function in vars(ddp).values() if hasattr(function, "__code__")]
    codes += [each.fset.__code__ for each in vars(ddp).values() if isinstance(each, property) and each.fset]
    called = {name for code in codes for name in code.co_names if name in dir(reducer) and name not in dir(object)}
    assert {"_rebuild_buckets", "prepare_for_backward"} <= called
    assert called - NOT_CALLED <= {*dir(known)}
