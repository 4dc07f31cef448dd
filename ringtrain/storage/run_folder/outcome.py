"""The outcome of a run, in its folder: ``outcome.json``, for scripts that must not guess from a launcher's status.

    {"outcome": "running", "exit_code": null, "iteration": 0, "iterations": 3000, "ranks": 4, "lost": [], "text": ""}

The run replaces it whole, at the start and at the end. If it still says "running" when no process is left, the run was
killed before it could write.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ringtrain.errors import UsageError, plain
from ringtrain.humanize import plural
from ringtrain.parsing import parse_json, read_text
from ringtrain.storage import files, texts

NAME = "outcome.json"
RUNNING, DONE, FAILED = "running", "done", "failed"
WORDS = {0: DONE, 1: FAILED, 2: "usage", 3: "diverged", 4: "stalled", **dict.fromkeys((75, 129, 130), "interrupted")}
LARGEST_BYTES = 1 << 20
KILLED = 1  # the exit code of a run that was killed


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run.

    outcome:    one of :data:`WORDS`, or "running"
    exit_code:  every rank's exit code; None while it runs
    iteration:  the last finished one, of ``iterations``
    ranks:      their number, while it runs or at its end
    lost:       ranks that died, each by its number in the world that lost it
    text:       the reason of the end, if it is not done
    """

    outcome: str
    exit_code: int | None
    iteration: int
    iterations: int
    ranks: int
    lost: tuple[int, ...] = ()
    text: str = ""

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
    path = Path(folder) / NAME
    try:
        return _of(parse_json(read_text(path, LARGEST_BYTES, files.open_nofollow)))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; give the folder of a run of this version, which holds this file from its start"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} is not the outcome of a run: {error}; it was changed, or another program wrote it"
        ) from error


def _of(held) -> RunOutcome:
    if not isinstance(held, dict):
        raise ValueError("it is not a JSON object")
    counts = {key: _count(held, key) for key in ("iteration", "iterations", "ranks")}
    code, word = held["exit_code"], held["outcome"]
    if word not in {RUNNING, *WORDS.values()}:
        raise ValueError(texts.OUTCOME_FIELD(key="outcome", value=word))
    if code is not None and (type(code) is not int or not 0 <= code <= 255):
        raise ValueError(texts.OUTCOME_FIELD(key="exit_code", value=code))
    if type(held["lost"]) is not list or not all(type(rank) is int for rank in held["lost"]):
        raise ValueError(texts.OUTCOME_FIELD(key="lost", value=held["lost"]))
    return RunOutcome(word, code, **counts, lost=tuple(held["lost"]), text=str(held["text"]))


def _count(held: dict, key: str) -> int:
    if type(held[key]) is not int or held[key] < 0:
        raise ValueError(texts.OUTCOME_FIELD(key=key, value=held[key]))
    return held[key]
