"""Arrays in files, as ``--data`` names them: .npz and .npy of NumPy, arrays of HDF5 files, patterns of such files."""

from pathlib import Path

from ringtrain.data.content import Content, Part, Progress
from ringtrain.data.file.contents import class_names, verify_parts
from ringtrain.data.file.grammar import AS_STORED, WILD, Layout
from ringtrain.data.file.source import open_source
from ringtrain.errors import DataError

WHAT = (
    ".npz or HDF5 with the arrays x_train and y_train (x_test and y_test too), x and y, images and labels, or "
    "train_images …; FILE.h5:x,y; x.npy,y.npy; a pattern of such files"
)


def accepts(path: Path) -> bool:
    text = str(path)
    if path.exists():
        return path.is_file() and path.suffix in (".npz", ".npy", ".h5", ".hdf5", ".csv", ".tsv")
    return bool(WILD & set(path.name)) or text.endswith(".npy") or ":" in text


def read(path: Path, size, progress: Progress, layout: Layout = AS_STORED) -> Content:
    """Open the arrays; blocks of them are read as they are written. Raises: DataError"""
    source = open_source(path, layout=layout)
    source.verify()
    verify_parts((*source.joined, *source.parts.values()), progress)
    parts = {name: _checked(part) for name, part in source.parts.items()}
    return Content(
        name=source.name,
        train=parts["train"],
        test=parts.get("test"),
        classes=class_names(source),
        source=source.source,
        notes=source.notes,
    )


def _checked(part: Part) -> Part:
    if part.labels is None:
        raise DataError(f"{part.inputs.where} has no labels beside it: name both, as in FILE.h5:x,y or x.npy,y.npy")
    shape = part.inputs.shape
    if len(shape) == 4 and shape[1] in (1, 3) and shape[3] not in (1, 2, 3, 4):
        raise DataError(
            f"{part.inputs.where}: images have the shape {shape}, which looks like [N, C, H, W]: give --layout "
            "channels-first"
        )
    return part
