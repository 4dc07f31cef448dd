"""The outcome of a run, in its folder: ``outcome.json``, for scripts that must not guess from a launcher's status.

    {"outcome": "running", "exit_code": null, "iteration": 0, "iterations": 3000, "ranks": 4, "lost": [], "text": ""}

The run replaces it whole, at the start and at the end. If it still says "running" when no process is left, the run was
killed before it could write.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from ringtrain.errors import plain
from ringtrain.humanize import plural
from ringtrain.records import Rules, load
from ringtrain.storage import files

NAME = "outcome.json"
RUNNING, DONE, FAILED = "running", "done", "failed"
WORDS = {0: DONE, 1: FAILED, 2: "usage", 3: "diverged", 4: "stalled", **dict.fromkeys((75, 129, 130), "interrupted")}
LARGEST_BYTES = 1 << 20
COUNTS = ("iteration", "iterations", "ranks")
KILLED = 1  # the exit code of a run that was killed


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run."""

    outcome: Annotated[str, Rules(choices={RUNNING, *WORDS.values()})]  # one of :data:`WORDS`, or "running"
    exit_code: Annotated[int | None, Rules(high=255)]  # every rank's exit code; None while it runs
    iteration: int  # the last finished one, of ``iterations``
    iterations: int
    ranks: int  # their number, while it runs or at its end
    lost: tuple[int, ...] = ()  # ranks that died, each by its number in the world that lost it
    text: str = ""  # the reason of the end, if it is not done

    def describe(self) -> str:
        """Return one line for people."""
        lost = f", {len(self.lost)} lost on the way" if self.lost else ""
        line = (
            f"{self.outcome}: iteration {self.iteration:,} of {self.iterations:,}, {plural(self.ranks, 'rank')}{lost}"
        )
        if self.exit_code is not None:
            line += f", exit code {self.exit_code}"
        first_line = self.text.split("\n")[0]
        return f"{line}: {plain(first_line)}" if self.text else line


def write_outcome(folder: Path, outcome: RunOutcome) -> None:
    """Write the outcome of a run into its folder. Raises: RingtrainError, UsageError as ``files.write``."""
    files.Folder(folder).write(NAME, (json.dumps(asdict(outcome)) + "\n").encode())


def read_outcome(folder) -> RunOutcome:
    """Read the outcome in the folder of a run. Raises UsageError if it is missing or malformed."""
    title, give = "file of a run of this version", "the folder of a run of this version"
    return load(RunOutcome, Path(folder) / NAME, title, give=give, largest=LARGEST_BYTES, opener=files.open_nofollow)
