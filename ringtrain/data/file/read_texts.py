"""A program that reads the attributes of an HDF5 file, and ends by a signal where the library loops or crashes on one.

It is given the path, and the seconds of processor time that it may take. Whatever else is wrong with the file is for
the reader that follows.
"""

import resource
import sys

import h5py
from h5py import h5l, h5pl


def read_attributes(path: str) -> None:
    """Read the attributes of the root and of the parts of a data set, as far as they can be read."""
    with h5py.File(path, "r", locking=False) as file:
        _read(file)
        for name in (b"train", b"test"):
            if file.id.links.exists(name) and file.id.links.get_info(name).type == h5l.TYPE_HARD:
                _read(file[name])


def _read(owner) -> None:
    for name in owner.attrs:
        try:
            owner.attrs[name]
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError):
            continue


if __name__ == "__main__":
    seconds = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while h5pl.size():  # a file names filters by number, and the library would load code for them
        h5pl.remove(0)
    read_attributes(sys.argv[1])
