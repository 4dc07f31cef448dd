"""Whether files can be written and read by HDF5 in some place. It is imported only then: h5py may be missing."""

from pathlib import Path

import numpy as np

COUNT = 1000


def hdf5_version() -> str:
    import h5py

    return f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.version.version}"


def try_hdf5(path: Path) -> str:
    """Write a file there and read it, as the library does by itself, but without locks; what went wrong, or empty."""
    import h5py

    numbers = np.arange(COUNT)
    try:
        with h5py.File(path, "w", locking=False) as file:
            file["numbers"] = numbers
        with h5py.File(path, "r", locking=False) as file:
            found = file["numbers"][()]
    except OSError as error:
        return str(error)
    return "" if np.array_equal(found, numbers) else "what was read is not what was written"
