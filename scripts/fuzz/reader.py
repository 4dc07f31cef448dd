"""One reader of bad input, as the fuzzer and the tests see it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.fuzz.mutation import Mutator
from scripts.fuzz.rules import judged


@dataclass(frozen=True, slots=True)
class Reader:
    """name, what: for people
    seeds:    valid inputs, by our own writers
    mutate:   makes another input of one
    prepare:  writes an input into an empty folder; what reads it
    names:    of which an error's message holds one; () where there is no file to name
    """

    name: str
    what: str
    seeds: Callable[[], list[bytes]]
    mutate: Mutator
    prepare: Callable[[bytes, Path], Callable[[], object]]
    names: tuple[str, ...] = ()

    def judge(self, data: bytes, folder: Path) -> str:
        """As :func:`scripts.fuzz.rules.judged`, of one input. Leaves the folder empty."""
        try:
            return judged(self.prepare(data, folder), folder, self.names)
        finally:
            empty(folder)


def empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
