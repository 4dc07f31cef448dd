"""The texts that ``--data`` takes, as names of files and of arrays in them.

digits                          the shipped set
F.h5                            a file of `data make`, or one with arrays of the names in PAIRS
F.h5:images,labels              arrays of an HDF5 file, by name or path; F.h5:images has no labels
F.npz  F.npz:a,b                arrays of an archive, by the names in PAIRS, or these
x.npy  x.npy,y.npy              inputs, and labels
"train-*.h5"                    files in the order of their names, as one set; with any of the above
"""

import glob
from dataclasses import dataclass
from pathlib import Path

from ringtrain.data import texts
from ringtrain.errors import DataError, nearest

DIGITS = Path(__file__).parents[1] / "digits.h5"
# Names of arrays: inputs and labels of the training part, then of the test part.
PAIRS: tuple[tuple[str, str, str | None, str | None], ...] = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("x", "y", None, None),
    ("images", "labels", None, None),
    ("train_images", "train_labels", "test_images", "test_labels"),  # of MedMNIST
)
WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Layout:
    """How arrays are laid out, but for those of `data make`: the values of ``--layout`` and ``--ignore-label``."""

    axes: str | None = None
    ignored: int | None = None


AS_STORED, CHANNELS_FIRST = Layout(), "channels-first"


@dataclass(frozen=True, slots=True)
class DataSpec:
    """``files`` in order; ``names``: of the arrays of inputs and labels (or None), where they were given; ``labels``:
    the files of labels, where these are apart."""

    text: str
    files: tuple[Path, ...]
    names: tuple[str, str | None] | None = None
    labels: tuple[Path, ...] = ()


def parse_data(text) -> DataSpec:
    """Return the files and arrays that ``text`` names. Raises: DataError if a pattern has no file, or names are
    malformed."""
    text = str(text)
    if text == "digits":
        return DataSpec(text, (DIGITS,))
    if Path(text).exists():
        return DataSpec(text, (Path(text),))
    head, comma, tail = text.partition(",")
    if comma and head.endswith(".npy"):
        if not tail.endswith(".npy"):
            raise DataError(f"{text}: inputs and labels are two .npy files: x.npy,y.npy")
        return DataSpec(text, _files(head), labels=_files(tail))
    head, colon, tail = text.rpartition(":")
    if colon and head:
        names = tail.split(",")
        if len(names) > 2 or not all(names):
            raise DataError(f"{text}: name one or two arrays after the colon, as in FILE.h5:images,labels")
        return DataSpec(text, _files(head), (names[0], names[1] if names[1:] else None))
    return DataSpec(text, _files(text))


def is_here(text) -> bool:
    """Return whether all files that ``text`` names are on this machine."""
    try:
        return all(file.exists() for file in parse_data(text).files)
    except DataError:
        return False


def _files(text: str) -> tuple[Path, ...]:
    if Path(text).exists() or not WILD & set(text):
        return (existing(Path(text)),)
    paths = tuple(sorted(Path(name) for name in glob.glob(text, recursive=True)))
    if not paths:
        raise DataError(texts.NO_MATCH.format(text=text))
    return paths


def existing(path: Path) -> Path:
    """Return the path of a file. Raises: DataError if it is none."""
    if path.is_dir():
        raise DataError(
            f"{path} is a folder, not a data set: name its files by a pattern in quotes, as in '{path}/*.h5', or make "
            "the file with `ringtrain data make`"
        )
    if path.suffix.lower() in (".csv", ".tsv"):
        cut, archive = r"'\t'" if path.suffix.lower() == ".tsv" else "','", path.with_suffix(".npz")
        raise DataError(
            f'{path} is text: make arrays of its columns, here with the last one as the label: python -c "import '
            f"numpy as np; t = np.loadtxt('{path}', delimiter={cut}, skiprows=1); np.savez('{archive}', "
            'x=t[:, :-1], y=t[:, -1])" (skiprows: lines of titles; class numbers: y=t[:, -1].astype(int))'
        )
    if not path.exists():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = [name for name in beside if name.endswith((".h5", ".npz", ".npy"))]
        raise DataError(
            f"there is no data set {path}: {nearest(path.name, [*near, 'digits'])}; or make the file with `ringtrain "
            "data make`"
        )
    if not path.is_file():
        raise DataError(f"{path} is not a regular file: make the file with `ringtrain data make`")
    return path
