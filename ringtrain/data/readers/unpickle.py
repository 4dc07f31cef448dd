"""The child program of :mod:`ringtrain.data.readers.pickles`, which unpickles a file with the standard library alone.

A pickle may name the functions of ALLOWED, which put a NumPy array together; PickledArray and Dtype only keep their
arguments.
Input is the pickle. Output is a line of JSON, then the bytes of all arrays and byte strings in their order:

    ["value", tree]          lists in it are ["list", item…], ["dict", key, value…], ["bytes", length]
                             and ["array", length, dtype, order, shape]
    ["PICKLE_…", {fields}]   the text that says why not
"""

import io
import json
import pickle
import resource
import sys

DEEPEST = 8  # nested lists: a list of a pickle can contain itself
MOST = 1 << 20  # values in the output: lists can contain one list many times, at every level


class NotAllowed(Exception):
    """The pickle names something outside ALLOWED."""


class Dtype:
    """The description of a NumPy type in a pickle."""

    def __init__(self, code, *_):
        self.order, self.code = "", decode_text(code)

    def __setstate__(self, state):
        self.order = decode_text(state[1]).strip("|=")


class PickledArray:
    """The description and bytes of a NumPy array in a pickle."""

    def __init__(self, *_):
        self.state = None

    def __setstate__(self, state):
        _, self.shape, self.dtype, self.fortran, self.data = state


def from_buffer(data, dtype, shape, order):
    """Make an array as protocol 5 does: directly, without an empty array and its state."""
    array = PickledArray()
    array.__setstate__((1, shape, dtype, order == "F", data))
    return array


ALLOWED = {
    "numpy.core.multiarray._reconstruct": PickledArray,
    "numpy._core.multiarray._reconstruct": PickledArray,
    "numpy.core.numeric._frombuffer": from_buffer,
    "numpy._core.numeric._frombuffer": from_buffer,
    "numpy.ndarray": None,  # an argument of _reconstruct
    "numpy.dtype": Dtype,
    "_codecs.encode": str.encode,  # protocol 2 writes bytes as text in latin1,
    "__builtin__.bytes": bytes,  # and no bytes as bytes()
}


class Unpickler(pickle.Unpickler):
    """An unpickler that finds only the names of ALLOWED."""

    def find_class(self, module, name):
        if f"{module}.{name}" not in ALLOWED:
            raise NotAllowed(f"{module}.{name}")
        return ALLOWED[f"{module}.{name}"]


def decode_text(value):
    """Return the text of a value that may be bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def value_tree(value, blobs: list, left: list[int], depth: int = 0):
    """Return a value as a tree for JSON, and append its bytes to ``blobs``. ``left``: how many more
    values it may have"""
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        raise ValueError(f"more than {MOST:,} values" if left[0] < 0 else f"more than {DEEPEST} lists within lists")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        return [
            "dict",
            *(value_tree(x, blobs, left, depth + 1) for pair in value.items() for x in (decode_text(pair[0]), pair[1])),
        ]
    if type(value) in (list, tuple):
        return ["list", *(value_tree(x, blobs, left, depth + 1) for x in value)]
    kind = "array" if type(value) is PickledArray else "bytes"
    blobs.append(memoryview(value.data if kind == "array" else value))
    layout = (value.dtype.order + value.dtype.code, "CF"[value.fortran], value.shape) if kind == "array" else ()
    return [kind, blobs[-1].nbytes, *layout]


def run_pickle(data: bytes, memory_bytes: int) -> tuple[str, list]:
    """Run the pickle; return the line of JSON, and the bytes after it."""
    blobs: list[memoryview] = []
    try:
        value = Unpickler(io.BytesIO(data), encoding="bytes").load()
        tree = value_tree(value, blobs, [MOST])
        if sum(blob.nbytes for blob in blobs) > memory_bytes:
            raise MemoryError
        return json.dumps(["value", tree]), blobs
    except NotAllowed as error:
        return json.dumps(["PICKLE_NAMES", {"name": str(error)}]), []
    except MemoryError:
        return json.dumps(["PICKLE_TAKES_MEMORY", {"bytes": memory_bytes}]), []
    except Exception as error:  # a broken pickle raises exceptions of any type
        return json.dumps(["PICKLE_BROKEN", {"error": f"{type(error).__name__}: {error}"}]), []


if __name__ == "__main__":
    given, memory, seconds = sys.stdin.buffer.read(), int(sys.argv[1]), int(sys.argv[2])
    for limit, value in {"AS": memory, "CPU": seconds, "NOFILE": 0, "FSIZE": 0, "CORE": 0}.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (value, value + (limit == "CPU")))  # SIGXCPU first
    line, parts = run_pickle(given, memory)
    for part in (line.encode(), b"\n", *parts):
        sys.stdout.buffer.write(part)
