"""The search for run folders."""

import os
from pathlib import Path

from ringtrain.errors import UsageError, plain
from ringtrain.storage.run_folder import lock, outcome

LOG, CONFIG, CHECKPOINTS = "log.jsonl", "config.toml", "checkpoints"


def find_runs(top: Path) -> tuple[list[Path], list[str]]:
    """Return the run folders at and below ``top``, by name; and a line for each folder that cannot be read.

    Hidden folders and linked ones are passed over. Raises UsageError if there is no folder ``top``.
    """
    if not top.is_dir():
        what = "not a folder" if os.path.lexists(top) else "not there"
        raise UsageError(
            f"{top} is {what}: name a run folder, or a folder with run folders; `ringtrain train` makes runs/"
        )
    run_folders, problems = [], []

    def note(error: OSError) -> None:
        problems.append(f"{plain(str(error.filename))} cannot be read: {error.strerror}")

    for path, folders, names in os.walk(top, onerror=note):
        begun = lock.NAME in names and CHECKPOINTS in folders  # maybe of a run that was killed before its first record
        if begun or LOG in names or outcome.NAME in names:
            run_folders.append(Path(path))
        folders[:] = [name for name in folders if not name.startswith(".") and name != CHECKPOINTS]
    return sorted(run_folders), problems
