"""Tar shards: a scan of the headers finds each example's bytes, which are then read at their offset.

0001.jpg 0001.cls   0002.jpg 0002.json      members with one stem are one example (WebDataset); its label is the
                                            number in .cls, or "label" in .json
rose/1.jpg   tulip/7.png                    or the folder of a member is its class
"""

import glob
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from ringtrain.data import texts
from ringtrain.data.content import MOST_CLASSES
from ringtrain.data.image_files.index import Listing
from ringtrain.data.readers.image_walk import SUFFIXES
from ringtrain.errors import DataError, plain

COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.zst")
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_SHARDS = 1 << 20
LABELS = (".cls", ".json")
LABEL_BYTES = 1 << 20  # of a member with a label, at most
END_BYTES = 1 << 20  # of zeros after the last member, at most: tar fills its last record


def are_shards(pattern: str) -> bool:
    """Return whether a path or pattern names tar files."""
    return pattern.lower().endswith((".tar", *COMPRESSED))


def shards_of(pattern: str) -> list[str]:
    """Return the paths that a pattern names, in order: {000..099} counts, * ? [ ] match. Raises: DataError"""
    if pattern.lower().endswith(COMPRESSED):
        raise DataError(texts.SHARD_COMPRESSED(path=pattern))
    found = _counted(pattern)
    if len(found) == 1 and glob.has_magic(pattern):
        found = sorted(glob.glob(pattern))
    if not found:
        raise DataError(texts.NO_SHARDS(pattern=pattern))
    for path in found:
        if not os.path.isfile(path):
            raise DataError(texts.NO_SHARD(path=path))
    return found


def _counted(pattern: str) -> list[str]:
    """The texts that the first {first..last} of a pattern stands for; numbers keep the width of the first."""
    braces = BRACES.search(pattern)
    if braces is None:
        return [pattern]
    first, last = braces.groups()
    if not 0 <= int(last) - int(first) < MOST_SHARDS:
        raise DataError(texts.SHARD_NUMBERS(pattern=pattern))
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    numbers = range(int(first), int(last) + 1)
    return [path for number in numbers for path in _counted(f"{before}{number:0{len(first)}}{after}")]


class _Shard:
    """A shard that is scanned; it names itself in errors."""

    def __init__(self, path: str, file):
        self.path, self.file = path, file
        self.size = os.fstat(file.fileno()).st_size

    def place(self, member) -> str:
        """Name a member of it."""
        return texts.MEMBER_AT(shard=self.path, member=plain(member.name), offset=member.offset)

    def error(self, text, member, **fields) -> DataError:
        return DataError(text(shard=self.path, member=plain(member.name), offset=member.offset, **fields))

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members that are files. Raises: DataError where headers tell that the shard is not whole"""
        at = -1
        with self._open() as archive:
            while True:
                try:
                    member = archive.next()
                except Exception as error:  # malformed bytes raise exceptions of any type
                    damaged = texts.SHARD_DAMAGED(shard=self.path, offset=archive.offset, error=error)
                    raise DataError(damaged) from error
                archive.members = []  # or tarfile keeps them all
                if member is None:
                    break
                if member.size < 0 or member.offset <= at:  # a header may say anything
                    raise self.error(texts.MEMBER_HEADER, member)
                at = member.offset
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise self.error(texts.MEMBER_NO_FILE, member)
                if member.offset_data + member.size > self.size:
                    raise self.error(texts.MEMBER_CUT, member, nbytes=self.size)
                yield member
            self._check_end(archive.offset)

    def _open(self):
        try:
            return tarfile.open(fileobj=self.file, mode="r:")
        except Exception as error:
            raise DataError(texts.SHARD_DAMAGED(shard=self.path, offset=0, error=error)) from error

    def _check_end(self, offset: int) -> None:
        """Check that zeros end the shard: tarfile takes a damaged header, or none, for the end."""
        rest = os.pread(self.file.fileno(), END_BYTES + 1, offset)
        if not rest:
            raise DataError(texts.SHARD_CUT(shard=self.path, nbytes=self.size))
        if any(rest) or len(rest) > END_BYTES:
            raise DataError(texts.SHARD_GOES_ON(shard=self.path, offset=offset))

    def read(self, member) -> bytes:
        if member.size > LABEL_BYTES:
            raise self.error(texts.LABEL_UNREADABLE, member, error=texts.LABEL_LARGE(most=LABEL_BYTES))
        return os.pread(self.file.fileno(), member.size, member.offset_data)


def scan_shard(path: str) -> Listing:
    """Find the examples of a shard by its headers, in the order of its images. Raises: DataError naming the shard, the
    member and its offset"""
    try:
        with open(path, "rb") as file:
            shard = _Shard(path, file)
            images, labels, others = [], {}, []
            for member in shard.members():
                where = PurePosixPath(member.name)
                if where.name.startswith("."):
                    continue
                if where.suffix.lower() in SUFFIXES:
                    images.append(member)
                elif where.suffix.lower() in LABELS:
                    if _stem(member) in labels:
                        raise shard.error(texts.TWO_LABELS, member)
                    labels[_stem(member)] = member, _label(shard, member)
                else:
                    others.append(member)
            if not images:
                raise DataError(texts.SHARD_NO_IMAGES(shard=path, suffixes=", ".join(sorted(SUFFIXES))))
            if not labels:
                return _by_folder(shard, images, others)
            return replace(_by_stem(shard, images, labels), left_out=[shard.place(member) for member in others])
    except OSError as error:
        raise DataError(texts.SHARD_UNREADABLE(shard=path, error=error.strerror or error)) from error


def _stem(member) -> str:
    """What members of one example share: the path up to the first dot of the name."""
    folder, slash, name = member.name.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _label(shard: _Shard, member) -> int:
    text = shard.read(member)
    try:
        label = json.loads(text)["label"] if member.name.lower().endswith(".json") else int(text)
        if type(label) is not int or not 0 <= label < MOST_CLASSES:
            raise ValueError(texts.LABEL_NO_CLASS(label=label, most=MOST_CLASSES - 1))
    except KeyError:
        raise shard.error(texts.LABEL_UNREADABLE, member, error=texts.LABEL_ABSENT()) from None
    except Exception as error:  # malformed JSON raises exceptions of many types
        raise shard.error(texts.LABEL_UNREADABLE, member, error=error) from error
    return label


def _by_stem(shard: _Shard, images, labels) -> Listing:
    seen, found = set(), []
    for image in images:
        stem = _stem(image)
        if stem not in labels:
            raise shard.error(texts.NO_LABEL, image, stem=plain(stem))
        if stem in seen:
            raise shard.error(texts.TWO_IMAGES, image, stem=plain(stem))
        seen.add(stem)
        found.append(labels[stem][1])
    for stem, (member, _) in labels.items():
        if stem not in seen:
            raise shard.error(texts.LABEL_ALONE, member)
    return _listing(images, found)


def _by_folder(shard: _Shard, images, others) -> Listing:
    for member in others:
        raise shard.error(texts.MEMBER_NO_IMAGE, member)
    parents = [PurePosixPath(image.name).parent.name for image in images]
    for image, parent in zip(images, parents, strict=True):
        if not parent or parent == "..":
            raise shard.error(texts.NO_LABEL, image, stem=plain(_stem(image)))
    folders = sorted(set(parents))
    numbers = {folder: number for number, folder in enumerate(folders)}
    return _listing(images, [numbers[parent] for parent in parents], folders)


def _listing(images, labels, folders=()) -> Listing:
    return Listing(
        names=[image.name for image in images],
        offsets=[image.offset_data for image in images],
        sizes=[image.size for image in images],
        labels=labels,
        folders=folders,
    )
