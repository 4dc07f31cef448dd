"""Tar shards: a scan of the headers finds each example's bytes, which are then read at their offset.

0001.jpg 0001.cls   0002.jpg 0002.json      members with one stem are one example (WebDataset); its label is the
                                            number in .cls, else "label" in .json
rose/1.jpg   tulip/7.png                    else the folder of a member is its class
"""

import glob
import json
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ringtrain.data.content import MOST_CLASSES
from ringtrain.data.image_files.index import Tables, tables_of
from ringtrain.data.readers.image_walk import SUFFIXES
from ringtrain.errors import DataError, plain

COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.zst")
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_SHARDS = 1 << 20
LABELS = (".cls", ".json")  # the first before the second
OF_STEM = "of the stem {stem}, which ends at the first dot of a name: rename the members of one example, or keep one"
LABEL_BYTES = 1 << 20  # of a member with a label, at most
END_BYTES = 1 << 20  # of zeros after the last member, at most: tar fills its last record


def are_shards(pattern: str) -> bool:
    """Return whether a path or pattern names tar files."""
    return pattern.lower().endswith((".tar", *COMPRESSED))


def shards_of(pattern: str) -> list[str]:
    """Return the paths that a pattern names, in order: {000..099} counts, * ? [ ] match. Raises: DataError"""
    if pattern.lower().endswith(COMPRESSED):
        raise DataError(
            f"{pattern} is compressed, and a compressed tar is read from its start alone: unpack it to a .tar "
            "(gunzip, xz -d, zstd -d); images are compressed themselves"
        )
    paths = _counted(pattern)
    if len(paths) == 1 and glob.has_magic(pattern):
        paths = sorted(glob.glob(pattern))
    if not paths:
        raise DataError(f"no file matches {pattern}: check the folder, and put the pattern in quotes")
    for path in paths:
        if not os.path.isfile(path):
            raise DataError(f"there is no shard {path}: check the folder and the numbers")
    return paths


def _counted(pattern: str) -> list[str]:
    """The texts that the first {first..last} of a pattern stands for; numbers keep the width of the first."""
    braces = BRACES.search(pattern)
    if braces is None:
        return [pattern]
    first, last = braces.groups()
    if not 0 <= int(last) - int(first) < MOST_SHARDS:
        raise DataError(
            f"{pattern}: a range is {{FIRST..LAST}}, such as {{000..099}}, of at most 1,048,576 numbers that rise"
        )
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    numbers = range(int(first), int(last) + 1)
    return [path for number in numbers for path in _counted(f"{before}{number:0{len(first)}}{after}")]


def member_at(shard: str, name: str, offset: int) -> str:
    """Return the name of a member of a shard in errors and notes."""
    return f"{shard}: member {plain(name)} at byte {offset}"


class _Shard:
    """A shard that is scanned; it names itself in errors."""

    def __init__(self, path: str, file):
        self.path, self.file = path, file
        self.size = os.fstat(file.fileno()).st_size

    def describe(self, member) -> str:
        return member_at(self.path, member.name, member.offset)

    def error(self, member, problem: str) -> DataError:
        return DataError(f"{self.describe(member)} {problem}")

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members that are files. Raises: DataError where headers tell that the shard is not whole"""
        at = -1
        try:
            archive: Any = tarfile.open(fileobj=self.file, mode="r:")  # noqa: SIM115 (closed below)
        except Exception as error:
            raise self.not_whole(0, error) from error
        with archive:
            while True:
                try:
                    member = archive.next()
                except Exception as error:  # malformed bytes raise exceptions of any type
                    raise self.not_whole(archive.offset, error) from error
                archive.members = []  # or tarfile keeps them all
                if member is None:
                    break
                if member.size < 0 or member.offset <= at:  # a header may say anything
                    raise self.error(member, "has a header that makes no sense: the archive is damaged; copy it again")
                at = member.offset
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise self.error(
                        member, "is a link, a sparse file or no file: write the image itself into the archive"
                    )
                if member.offset_data + member.size > self.size:
                    raise self.error(member, f"is truncated: the archive ends after {self.size} bytes; copy it again")
                yield member
            self._check_end(archive.offset)

    def not_whole(self, offset: int, error: Exception) -> DataError:
        return DataError(f"{self.path} is no whole tar archive: at byte {offset}: {error}; copy it again")

    def _check_end(self, offset: int) -> None:
        """Check that zeros end the shard: tarfile takes a damaged header, or none, for the end."""
        rest = os.pread(self.file.fileno(), END_BYTES + 1, offset)
        if not rest:
            raise DataError(
                f"{self.path} is truncated: it ends after {self.size} bytes without the mark of an end; copy it again"
            )
        if any(rest) or len(rest) > END_BYTES:
            raise DataError(
                f"{self.path} has more bytes at {offset}, where its members end: it is damaged, or several archives "
                "in one; copy it again, or make one archive"
            )


def scan_shard(path: str) -> Tables:
    """Find the examples of a shard by its headers, in the order of its images. Raises: DataError naming the shard, the
    member and its offset"""
    try:
        with open(path, "rb") as file:
            shard = _Shard(path, file)
            images, others = [], []
            labels: dict[str, dict[str, tarfile.TarInfo]] = defaultdict(dict)
            for member in shard.members():
                where = PurePosixPath(member.name)
                if where.name.startswith("."):
                    continue
                if where.suffix.lower() in SUFFIXES:
                    images.append(member)
                elif where.suffix.lower() in LABELS:
                    if where.suffix.lower() in labels[_stem(member)]:
                        raise shard.error(member, f"is a second label {OF_STEM.format(stem=plain(_stem(member)))}")
                    labels[_stem(member)][where.suffix.lower()] = member
                else:
                    others.append(member)
            if not images:
                raise DataError(f"{path} has no images (of {', '.join(sorted(SUFFIXES))})")
            numbered = _numbered(shard, labels)
            numbers, folders = _by_stem(shard, images, numbered) if numbered else _by_folder(shard, images, others)
            return tables_of(
                names=[image.name for image in images],
                offsets=[image.offset_data for image in images],
                sizes=[image.size for image in images],
                labels=numbers,
                folders=folders,
                left_out=[shard.describe(member) for member in others],
            )
    except OSError as error:
        raise DataError(f"{path} could not be read: {error.strerror or error}") from error


def _stem(member) -> str:
    """What members of one example share: the path up to the first dot of the name."""
    folder, slash, name = member.name.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _unlabelled(shard: _Shard, image) -> DataError:
    return shard.error(
        image,
        f"has no label: give a member {plain(_stem(image))}.cls with a class number, or put it under a folder of its "
        "class",
    )


def _numbered(shard: _Shard, labels: dict[str, dict]) -> dict:
    """{stem: (member, class number)}. A .json gives way to a .cls, and without a "label" it is other information."""
    chosen = {stem: members.get(".cls") or members[".json"] for stem, members in labels.items()}
    numbers = ((stem, member, _label(shard, member)) for stem, member in chosen.items())
    return {stem: (member, number) for stem, member, number in numbers if number is not None}


def _label(shard: _Shard, member) -> int | None:
    """The class number of a label; None of a .json without one."""
    if member.size > LABEL_BYTES:
        raise shard.error(member, f"has no class number: it has more than {LABEL_BYTES} bytes")
    text = os.pread(shard.file.fileno(), member.size, member.offset_data)
    try:
        label = json.loads(text) if member.name.lower().endswith(".json") else int(text)
        if isinstance(label, dict):
            if "label" not in label:
                return None
            label = label["label"]
        if type(label) is not int or not 0 <= label < MOST_CLASSES:
            raise ValueError(f"{label!r} is not a whole number from 0 to {MOST_CLASSES - 1}")
    except Exception as error:  # malformed JSON raises exceptions of many types
        raise shard.error(member, f"has no class number: {error}") from error
    return label


Labels = tuple[list[int], list[str]]  # class numbers, and the folders that they are of; none if they are numbers alone


def _by_stem(shard: _Shard, images, labels) -> Labels:
    seen, numbers = set(), []
    for image in images:
        stem = _stem(image)
        if stem not in labels:
            raise _unlabelled(shard, image)
        if stem in seen:
            raise shard.error(image, f"is a second image {OF_STEM.format(stem=plain(stem))}")
        seen.add(stem)
        numbers.append(labels[stem][1])
    for stem, (member, _) in labels.items():
        if stem not in seen:
            raise shard.error(member, "is a label without an image of its stem")
    return numbers, []


def _by_folder(shard: _Shard, images, others) -> Labels:
    for member in others:
        raise shard.error(member, "is no image, by its ending: leave it out of the archive")
    parents = [PurePosixPath(image.name).parent.name for image in images]
    for image, parent in zip(images, parents, strict=True):
        if not parent or parent == "..":
            raise _unlabelled(shard, image)
    folders = sorted(set(parents))
    numbers = {folder: number for number, folder in enumerate(folders)}
    return [numbers[parent] for parent in parents], folders
