"""Files that another process may read at any time, a digest of what runs on a device, and the end of a program."""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

CUDA = Path(__file__).parents[2] / "ringtrain" / "ops" / "cuda"


def put(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text)
    os.replace(aside, path)


def write_rows(folder: Path, rows, name: str = "rows.json") -> None:
    put(folder / name, json.dumps(rows))


def read_json(path: Path):
    """Return the content of a file of :func:`write_rows`; nothing where there is none, or it was spoiled."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def sources_digest() -> str:
    """Return a digest of all that decides what is compiled for a device, and what is run there."""
    digest = hashlib.sha256()
    for path in sorted(CUDA.rglob("*.*")):
        if path.suffix in (".py", ".cu", ".cuh"):
            digest.update(path.relative_to(CUDA).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def run_program(main: Callable[[], int | None]) -> None:
    """Run it, and tell an error of ringtrain in a line."""
    from ringtrain.errors import RingtrainError

    try:
        sys.exit(main())
    except RingtrainError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")
