"""Processes of ringtrain that another one starts find ringtrain, and nothing of the user's folder."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringtrain
from ringtrain.child import CHECKOUT, child_command

PACKAGE = Path(ringtrain.__file__).parent
SHADOWS = ("random", "types", "copy", "json", "select", "queue", "numpy", "click", "ringtrain/__init__")


@pytest.mark.parametrize("module", ["ringtrain"])
def test_files_of_the_working_folder_are_not_imported(tmp_path, monkeypatch, module):
    monkeypatch.chdir(tmp_path)
    Path("ringtrain").mkdir()
    for name in SHADOWS:
        Path(f"{name}.py").write_text("raise SystemExit('shadowed')")
    done = subprocess.run(child_command(module, "models", "list"), capture_output=True, text=True)
    assert done.returncode == 0 and "lenet" in done.stdout, done.stderr


def test_a_checkout_that_is_not_installed_finds_itself(tmp_path, monkeypatch):
    """-S: without what is installed; NumPy and click are not, either."""
    monkeypatch.chdir(CHECKOUT)
    program = "from ringtrain.child import child_command; print(child_command('ringtrain.child')[1:])"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = {"capture_output": True, "text": True, "env": environment}
    parent = subprocess.run([sys.executable, "-S", "-c", program], **run)
    assert parent.returncode == 0, parent.stderr
    words = ast.literal_eval(parent.stdout)
    assert subprocess.run([sys.executable, "-S", *words], **run).returncode == 0


def test_every_process_is_started_so():
    """The kernels are compiled at installation, where this package cannot be imported yet."""
    starters = {path for path in PACKAGE.rglob("*.py") if '"-m"' in path.read_text()}
    known = {"child.py", "cli/python_script.py", "ops/cpu/compile.py"}
    known |= {
        "cli/commands.py",
        "torch/__init__.py",
        "train/start/script_run.py",
    }  # know the word, and start none by it
    assert {str(path.relative_to(PACKAGE)) for path in starters} == known
