import contextlib
import os
import resource
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.random import default_rng  # here, and not while a test may read no files

from ringtrain.storage.checkpoint import seal, store
from ringtrain.storage.checkpoint.store import Checkpoint, fingerprint


def make_checkpoint(iteration: int = 7, **changed) -> Checkpoint:
    """A small checkpoint whose every value depends on the iteration."""
    draw = default_rng(iteration)
    weights = {
        "z/conv 1%.weight": draw.normal(size=(2, 3, 1, 2)).astype(np.float32),
        "fc.bias": draw.normal(size=5).astype(np.float32),
        "fc.scale": np.float32([np.nan, -0.0, np.inf]),
        "norm.größe": np.float64(iteration),
    }
    fields = {
        "iteration": iteration,
        "examples_seen": 64 * iteration,
        "epoch": iteration // 4,
        "weights": weights,
        "optimizer": {"velocity": {name: 2 * array for name, array in weights.items()}, "second": weights},
        "scalars": {"step": iteration, "loss": 0.1 * iteration, "started": True},
        "config": "seed = 1\n",
        "model": "[[layer]]\nname = 'fc'  # größer\n",
        "model_name": "mlp",
        "fingerprint": fingerprint({name: np.shape(array) for name, array in weights.items()}),
        "data_name": "digits",
        "data_checksum": "ab" * 32,
        "best": 0.75,
        "version": "0.1.0",
        "numerics": "kernels 1 (Größer)",
        "classes": ("größer", 'a "quoted" one'),
        "inputs": {"mean": np.float64([0.5]), "shape": np.int64([8, 8, 1])},
        "ranks": {"weights": draw.normal(size=(2, 9)).astype(np.float32), "examples": np.int64([[1, 3], [2, 3]])},
    }
    return Checkpoint(**{**fields, **changed})


def bits(value):
    """A value of a checkpoint in a form that can be compared: NaN equals itself, -0.0 differs from 0.0."""
    if isinstance(value, dict):
        return [(name, bits(each)) for name, each in value.items()]
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return all(bits(getattr(one, name)) == bits(getattr(other, name)) for name in Checkpoint.__slots__)


def failing(number):
    def fail(*arguments, **named):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def saved(tmp_path):
    """The file of a checkpoint."""
    store.save_checkpoint(tmp_path / "a.h5", make_checkpoint())
    return tmp_path / "a.h5"


@pytest.fixture(scope="session")
def reseal():
    """``reseal(path, change)``: change a checkpoint's HDF5 content by ``change(file)``, and make the seal right again:
    what a file looks like that someone else has made."""

    def sealed(path, change=None):
        if change is not None:
            with h5py.File(path, "r+") as file:
                change(file)
        content = path.read_bytes()[seal.BLOCK :]
        path.write_bytes(seal.make_seal(memoryview(content)) + content)

    return sealed


@pytest.fixture(scope="session")
def make():
    return make_checkpoint


@pytest.fixture(scope="session")
def equal():
    return same


@contextlib.contextmanager
def small_files(nbytes):
    """No file can grow beyond this, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def forbidden_folder():
    """A folder that this process may read and not write, also where the tests are run by root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(before)
    folder.chmod(0o755)
    shutil.rmtree(folder)
