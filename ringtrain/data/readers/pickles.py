"""Safe reading of pickles that hold only plain values and NumPy arrays.

A pickle is a program. It runs in a process of its own (:mod:`ringtrain.data.readers.unpickle`), which allows it a few
names and no files, and little memory and processor time. A pickle that crashes that process crashes nothing else.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from ringtrain.data import texts
from ringtrain.errors import DataError

PROGRAM = Path(__file__).with_name("unpickle.py")
CPU_S = 60
LEAST_BYTES, PER_BYTE = 512 << 20, 6  # of memory: for Python itself, and for each byte of the pickle


def load_plain(data: bytes, where: str):
    """Return the value in ``data``: dictionaries, lists, texts, bytes, numbers, and NumPy arrays of numbers. Texts of
    Python 2 come as bytes.

    Raises: DataError naming ``where``, for anything else.
    """
    command = [sys.executable, "-I", "-S", str(PROGRAM), str(LEAST_BYTES + PER_BYTE * len(data)), str(CPU_S)]
    ran = subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if code := ran.returncode:
        ended_by = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise DataError(f"{where} is refused: the process that unpickles it ended by {ended_by}, within {CPU_S} s")
    line, _, blobs = ran.stdout.partition(b"\n")
    what, found = json.loads(line)
    if what != "value":
        raise DataError(getattr(texts, what)(where=where, **found))
    try:
        return _value(found, memoryview(blobs), [0])
    except (ValueError, TypeError, OverflowError) as error:  # of an array's type, or its shape
        raise DataError(f"{where} is no pickle of plain values and NumPy arrays: {error}; copy it again") from error


def _value(tree, blobs: memoryview, at: list[int]):
    """Rebuild a value from its tree. ``at``: where the next blob begins"""
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind == "list":
        return [_value(item, blobs, at) for item in rest]
    if kind == "dict":
        return {key: _value(item, blobs, at) for key, item in zip(rest[::2], rest[1::2], strict=True)}
    data = blobs[at[0] : at[0] + rest[0]]
    at[0] += rest[0]
    return bytes(data) if kind == "bytes" else _array(data, *rest[1:])


def _array(data, code: str, order: str, shape) -> np.ndarray:
    dtype = np.dtype(code)
    if dtype.kind not in "biuf":
        raise ValueError(f"it has an array of type {code}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")
