"""The images in a folder and all folders in it: one walk, by which training, `data make`, `data info` and predictions
take the same files.

Links are followed, but not to a folder that the walk is in, nor twice to one folder behind the same link. Hidden files
and folders are no part of a data set.
"""

import os
from collections.abc import Iterator

from ringtrain.data import texts
from ringtrain.errors import DataError

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
IMAGE, BROKEN, OTHER = "image", "broken link to an image", "other"
MOST_DEPTH = 64  # of folders; deeper ones are left out


def is_image(name: str) -> bool:
    """Return whether a name ends as an image's does."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def listed(folder: str) -> list[os.DirEntry]:
    """Return what is in a folder, by name, without hidden entries. Raises: DataError"""
    try:
        with os.scandir(folder) as entries:
            return sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name)
    except OSError as error:
        raise DataError(texts.SOURCE_UNREADABLE.format(path=folder, error=error.strerror or error)) from error


def _leads_to_folder(entry: os.DirEntry) -> bool:
    """Whether an entry is a folder, or a link to one; a link that leads in a ring is none."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)


def is_folder(entry: os.DirEntry) -> bool:
    """Return whether an entry is a folder, or a link to one that it does not lie in."""
    if entry.is_symlink() and _holds(os.path.realpath(entry.path), os.path.realpath(os.path.dirname(entry.path))):
        return False
    return _leads_to_folder(entry)


def _holds(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(os.path.join(outer, ""))


def walk(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (path, kind) of each file below a folder, in the order of names. Raises: DataError"""
    return _walk(folder, (os.path.realpath(folder),), set() if os.path.islink(folder) else None)


def _walk(folder: str, above: tuple[str, ...], behind: set[str] | None) -> Iterator[tuple[str, str]]:
    """``above``: the real paths of the folders that the walk is in; ``behind``: of those that links have led to, behind
    the first link"""
    for entry in listed(folder):
        path, link = entry.path, entry.is_symlink()
        if not _leads_to_folder(entry):
            regular = os.path.isfile(path) if link else entry.is_file(follow_symlinks=False)
            kind = IMAGE if regular else BROKEN if link and not os.path.exists(path) else OTHER
            yield path, kind if is_image(entry.name) else OTHER
            continue
        real = os.path.realpath(path) if link else os.path.join(above[-1], entry.name)
        met: set[str] | None = set() if link and behind is None else behind
        is_ring = link and (real in (met or ()) or any(_holds(real, outer) for outer in above))
        if len(above) > MOST_DEPTH or is_ring:
            yield path, OTHER
            continue
        if link and met is not None:
            met.add(real)
        yield from _walk(path, (*above, real), met)
