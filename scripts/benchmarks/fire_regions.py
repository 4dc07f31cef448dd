"""The parts of a run's files, and what can be done to each: for the benchmark beside it."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import h5py

from ringtrain.checkpoint import seal

SIGNATURE = re.compile(rb"\x89HDF\r\n\x1a\n|OHDR|OCHK|FRHP|FHDB|FHIB|BTHD|BTLF|BTIN|GCOL|SNOD|TREE|HEAP|FSHD|FSSE")


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes start:stop of a file, and what they are."""

    what: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Damage:
    """``do(path)`` to one file of a run's folder."""

    file: str
    what: str
    do: Callable[[Path], None]


def regions_of(path: Path) -> list[Region]:
    """Every byte of a file is in one: of a checkpoint the seal's words, each array's values, and each structure of
    HDF5's own from its signature to the next; of a text its lines; of anything else a tenth."""
    content = path.read_bytes()
    if path.suffix == ".h5":
        return _of_checkpoint(path, content)
    if path.suffix in (".toml", ".jsonl", ".json"):
        lines, start = [], 0
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            lines.append(Region(f"line {number}", start, start + len(line)))
            start += len(line)
        return lines
    cuts = [len(content) * k // 10 for k in range(11)]
    return [Region(f"tenth {k}", a, b) for k, (a, b) in enumerate(pairwise(cuts)) if b > a]


def _of_checkpoint(path: Path, content: bytes) -> list[Region]:
    values = sorted(_values(path), key=lambda each: each.start)
    starts = {found.start(): f"HDF5 {found[0][:4]!r}" for found in SIGNATURE.finditer(content, seal.BLOCK)}
    starts |= {each.stop: f"behind {each.what}" for each in values} | {each.start: each.what for each in values}
    starts |= {found.start(): f"seal {found[0].decode()}" for found in re.finditer(rb"\S+ +", content[: seal.BLOCK])}
    starts = {at: what for at, what in starts.items() if not any(v.start < at < v.stop for v in values)}
    ends = [*sorted(starts)[1:], len(content)]
    return [Region(starts[a], a, b) for a, b in zip(sorted(starts), ends, strict=True) if b > a]


def _values(path: Path) -> list[Region]:
    found = []

    def visit(name, item) -> None:
        if isinstance(item, h5py.Dataset) and item.id.get_offset() is not None and item.id.get_storage_size():
            start = item.id.get_offset()  # from the file's begin, its seal included
            found.append(Region(f"values of {name}", start, start + item.id.get_storage_size()))

    with h5py.File(path, "r", locking=False) as file:
        file.visititems(visit)
    return found


def damages(folder: Path, draw) -> Iterator[Damage]:
    """Each thing that is done to one file of a run's folder."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.name != ".lock"):
        name = str(path.relative_to(folder))
        for region in regions_of(path):
            yield Damage(name, f"flip in {region.what}", _flip(draw.randrange(region.start, region.stop), draw))
        for region in regions_of(path):
            yield Damage(name, f"cut before {region.what}", _cut(region.start))
        yield Damage(name, "cut by a byte", _cut(path.stat().st_size - 1))
        yield Damage(name, "a folder in its place", _replaced(lambda at: (at / "in it").mkdir(parents=True)))
        yield Damage(name, "a dangling link", _replaced(lambda at: at.symlink_to("nowhere")))
        yield Damage(name, "a link to elsewhere", _replaced(lambda at: at.symlink_to(canary(folder))))
        yield Damage(name, "a pipe", _replaced(os.mkfifo))
        yield Damage(name, "not there", _replaced(lambda at: None))
        yield Damage(name, "no permissions", lambda at: at.chmod(0))


def canary(folder: Path) -> Path:
    """A file outside of the folder that nobody may change."""
    path = folder.parent / "canary"
    path.write_text("mine\n")
    return path


def _flip(offset: int, draw) -> Callable[[Path], None]:
    bit = 1 << draw.randrange(8)

    def do(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= bit
        with open(path, "r+b") as file:  # in place: other names of the file show it too
            file.write(content)

    return do


def _cut(length: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, length)


def _replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        path.unlink()
        make(path)

    return do


def copied(folder: Path, to: Path) -> Path:
    """With its hard links, which a flip goes through."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for path in sorted(folder.rglob("*")):
        target = to / path.relative_to(folder)
        if path.is_dir():
            target.mkdir()
        else:
            shutil.copy2(path, target)
    best, checkpoints = to / "checkpoints" / "best.h5", folder / "checkpoints"
    for path in checkpoints.glob("iteration-*.h5"):
        if path.samefile(checkpoints / "best.h5"):
            best.unlink()
            os.link(to / "checkpoints" / path.name, best)
    return to
