"""The rooms know only the rooms below them: the drawing in docs/architecture.md, held to by reading the imports."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringtrain

PACKAGE = Path(ringtrain.__file__).parent
LEAF = {"config", "config_texts", "errors", "humanize", "parsing", "resolve", "template"}
ARROWS = {
    "__init__": LEAF | {"api", "communicator"},
    "__main__": LEAF | {"cli"},
    "allreduce": LEAF | {"collectives", "monitor", "ops", "transport"},
    "api": LEAF | {"allreduce", "bench", "collectives", "monitor", "transport"},
    "bench": LEAF
    | {"allreduce", "collectives", "data", "exchange", "lr", "monitor"}
    | {"nn", "ops", "optim", "transport"},
    "checkpoint": LEAF | {"files", "hdf5", "storage_texts"},
    "cli": LEAF | {"*"},
    "collectives": LEAF | {"transport"},
    "communicator": LEAF | {"bench", "door", "exchange", "transport"},
    "config": LEAF,
    "config_texts": LEAF,
    "data": LEAF | {"files", "hdf5", "storage", "storage_texts"},
    "door": LEAF | {"collectives", "exchange", "transport"},
    "errors": LEAF,
    "exchange": LEAF | {"allreduce", "collectives", "monitor", "nn", "ops", "optim"} | {"transport"},
    "files": LEAF | {"storage_texts"},
    "hdf5": LEAF | {"storage_texts"},
    "humanize": LEAF,
    "launch": LEAF | {"allreduce", "bench", "files", "ops", "storage", "transport"},
    "lr": LEAF | {"optim_texts"},
    "monitor": LEAF | {"collectives", "transport"},
    "nn": LEAF | {"ops"},
    "ops": LEAF,
    "optim": LEAF | {"optim_texts"},
    "optim_texts": LEAF,
    "parsing": LEAF,
    "report": LEAF,
    "resolve": LEAF,
    "storage": LEAF,
    "storage_texts": LEAF,
    "template": LEAF,
    "train": LEAF
    | {"allreduce", "checkpoint", "collectives", "data", "exchange", "files"}
    | {"launch", "lr", "monitor", "nn", "ops", "optim"}
    | {"report", "storage", "transport"},
    "transport": LEAF,
}
CONFINED = {
    "mpi4py": {"transport"},
    "numba": {"ops/cpu"},
    "cupy": {"ops/cuda", "transport", "bench"},
    "cuda": {"ops/cuda", "transport", "bench"},
    "ml_dtypes": {"ops"},
    "cudnn": {"ops/cuda/convolution/cudnn.py"},
    "click": {"cli"},
    "h5py": {"checkpoint", "data", "hdf5", "storage"},
    "scipy_openblas32": {"ops/cpu"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "ringtrain":
                found.update(f"ringtrain.{alias.name}" for alias in node.names)
            else:
                found.add(node.module)
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path):
    own, allowed = room(path), ARROWS[room(path)]
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "ringtrain" or len(parts) == 1 or parts[1] == "__version__":
            continue
        assert parts[1] == own or "*" in allowed or parts[1] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_third_parties_are_confined(path):
    place = str(path.relative_to(PACKAGE))
    for name in imports(path):
        homes = CONFINED.get(name.split(".")[0])
        assert homes is None or place.startswith(tuple(homes)), f"{place} imports {name}"


def test_the_check_itself_says_no(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from ringtrain.train import loop\n")
    assert imports(wrong) == {"ringtrain.train"}
    assert "train" not in ARROWS["ops"]


def test_help_loads_nothing_heavy():
    program = (
        "import sys; from ringtrain.cli.main import run; run(['--help'])\n"
        "heavy = {'mpi4py', 'numba', 'cupy', 'numpy', 'h5py', 'rich'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_package_loads_nothing_until_the_communicator_is_asked_for():
    program = (
        "import sys; import ringtrain\n"
        "heavy = {'mpi4py', 'numba', 'cupy', 'numpy', 'h5py', 'click', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from ringtrain import Communicator\n"
        "heavy = {'mpi4py', 'numba', 'cupy', 'torch', 'jax', 'h5py', 'click', 'rich'} & set(sys.modules)\n"
        "assert not heavy and Communicator.__module__.startswith('ringtrain.'), heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="module 'ringtrain' has no attribute 'Comunicator'"):
        ringtrain.Comunicator  # noqa: B018


def test_a_command_leaves_blas_one_thread(tmp_path):
    """Unless the environment says more; what counts is the environment when NumPy is first imported."""
    program = (
        "import os, sys\n"
        "class Look:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy': print('numpy with', os.environ.get('OPENBLAS_NUM_THREADS'))\n"
        "sys.meta_path.insert(0, Look())\n"
        "from ringtrain.cli.main import run; run(['train', '--config', 'none.toml'])"
    )
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=PACKAGE.parent, env=environment)
    assert done.stdout.startswith("numpy with 1\n"), done.stdout + done.stderr


def test_every_room_is_packaged():
    setup = (PACKAGE.parent / "setup.cfg").read_text()
    for folder in {path.parent for path in FILES}:
        dotted = ".".join(folder.relative_to(PACKAGE.parent).parts)
        assert f"\n    {dotted}\n" in setup, f"{dotted} is missing from packages in setup.cfg"
