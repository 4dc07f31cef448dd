"""Commands in processes of their own, and scripts of PyTorch that ``ringtrain compare -n N`` starts so."""

import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ringtrain.cli.python_script import parse_script_command
from ringtrain.errors import Interrupted, RingtrainError, UsageError
from ringtrain.launch.mpirun import find_launcher, run_to_file
from ringtrain.launch.python_script import SEED, ScriptCommand
from ringtrain.parsing import whole_number
from ringtrain.report.comparison.logs import RunLog
from ringtrain.show.output import echo
from ringtrain.storage.run_folder.outcome import DONE, RUNNING, read_outcome
from ringtrain.template import Lines
from ringtrain.train.start.variants import Variant

RULE = "\n" + 40 * "-"
TOLD_LINES = 5  # of the output of a run that failed
LAUNCHER, PLACE = "ringtrain.torch", "{seed}"
STARTS_RANKS = ("mpirun", "mpiexec", "srun", "torchrun")
FOLDER = "the folder of a variant"  # in place of each one's, for checks


@dataclass(frozen=True, slots=True)
class ComparedCommand:
    """A command whose variants are compared."""

    launcher: Sequence[str]  # the words that start its ranks
    options: Sequence[str]  # its words up to the script: python -m ringtrain.torch [OPTIONS]
    script: Sequence[str]  # the script and its arguments
    metrics: Sequence[str]  # options that take scores from its lines

    def variants(self, named: Sequence[tuple[str, list[str]]], seeds: int | None) -> tuple[list[Variant], dict | None]:
        """Return the variants, and over seeds {name of a run: name of its variant}: all variants with one seed, then
        with the next. Raises UsageError with the name of the wrong variant.
        """
        for name, words in named:
            try:
                self._check(words)
            except RingtrainError as error:
                raise UsageError(Lines(f"variant {name!r}: {error}")) from None
        first = whole_number(os.environ.get(SEED, "")) or 0
        if seeds is None:
            return [Variant(name, None, {"words": words, "seed": first}) for name, words in named], None
        every = list(product(range(first, first + seeds), named))
        runs = [Variant(f"{name}, seed {seed}", None, {"words": words, "seed": seed}) for seed, (name, words) in every]
        return runs, {run.name: name for run, (_, (name, _)) in zip(runs, every, strict=True)}

    def _check(self, words: Sequence[str]) -> None:
        parsed = parse([*self.options, "--out", FOLDER, *words, *self.metrics, *self.script])
        if (parsed.name, *parsed.arguments) != tuple(self.script):
            raise UsageError(f"{shlex.join(words)!r} is not a list of options")
        _check_free(parsed)

    def run(self, variant: Variant) -> str | None:
        """Run a variant to its end, and return the reason if it fails."""
        folder, seed = Path(variant.flags["out"]), str(variant.flags["seed"])
        output = folder.with_name(f"{folder.name}.txt")
        log = ["--out", str(folder), "--seed", seed, *self.metrics]
        script = [word.replace(PLACE, seed) for word in self.script]
        status = run_to_file([*self.launcher, *self.options, *variant.flags["words"], *log, *script], output)
        text = ""
        with suppress(UsageError):
            became = read_outcome(folder)
            if status == 0 and became.outcome == DONE:
                return None
            text = "" if became.outcome in (RUNNING, DONE) else became.text or became.outcome
        why = "; ".join((text or last_words(output)).splitlines())
        return f"{why} (status {status}; all that it said is in {output})"


def read_command(words: Sequence[str], ranks: int, launcher: str | None, metrics: Sequence[str]) -> ComparedCommand:
    """Return the command of these words. Raises UsageError if it does not go through the launcher of scripts."""
    options = [word for text in metrics for word in ("--metric", text)]
    before, script, parsed = read_script(words, f"compare -n {ranks}", options)
    _check_free(parsed)
    return ComparedCommand(find_launcher(launcher, os.environ, "compare")(ranks), before, script, options)


def read_script(
    words: Sequence[str], asker: str, more: Sequence[str] = ()
) -> tuple[Sequence[str], Sequence[str], ScriptCommand]:
    """Return the words up to the script, the script with its arguments, and what all say, with --out :data:`FOLDER` and
    ``more`` options. ``asker``: the command that starts the ranks. Raises UsageError if they do not go through the
    launcher of scripts."""
    at = next((k for k in range(2, len(words)) if words[k - 2 : k] == ("-m", LAUNCHER)), None)
    if at is None:
        raise UsageError(
            f"{asker} starts a script by the launcher of ringtrain, and {shlex.join(words) or 'nothing'!r} "
            f"does not go through it: -- python -m {LAUNCHER} train.py"
        )
    if Path(words[0]).name in STARTS_RANKS:
        raise UsageError(f"{asker} starts the ranks itself: leave {Path(words[0]).name} out behind --")
    parsed = parse([*words[:at], "--out", FOLDER, *more, *words[at:]])
    split = len(words) - 1 - len(parsed.arguments)
    return words[:split], words[split:], parsed


def parse(words: Sequence[str]) -> ScriptCommand:
    parsed = parse_script_command(words[words.index(LAUNCHER) + 1 :])
    if isinstance(parsed, str):
        raise UsageError("--help shows options, and runs nothing: leave it out")
    return parsed


def _check_free(parsed: ScriptCommand) -> None:
    if parsed.out != FOLDER or parsed.seed is not None:
        raise UsageError("compare names the folders and the seeds: leave out --out and --seed")


def check_seeds(runs: Sequence, variant_of: Mapping[str, str] | None) -> None:
    """Raise UsageError if the last run has the scores of one with another seed."""
    *before, last = runs
    names = variant_of or {}
    for run in before:
        logs = isinstance(run, RunLog) and isinstance(last, RunLog) and variant_of is not None
        if logs and names[run.name] == names[last.name] and scores_of(run) == scores_of(last) != []:
            raise UsageError(
                f"{run.name!r} and {last.name!r} have the same {len(scores_of(run))} scores: the script ignores the "
                f"seed. Put {PLACE} in the command where the script takes it, or let the script read {SEED}"
            )


def scores_of(run: RunLog) -> list[tuple]:
    scores = ((point.loss, point.accuracy) for point in (*run.train, *run.test))
    return [each for each in scores if each != (None, None)]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def ended_by_signals(figures: Path) -> Iterator[None]:
    """End the run under way, too, if this process is told to end. figures: the file with those of the runs before"""

    def end(number, frame):
        raise Interrupted(f"told to end: the figures of the runs before are in {figures}, if there were any")

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        echo()  # ends the line of the run
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_words(output: Path) -> str:
    """Return the first error of ringtrain in an output, or else the last lines before those that mpirun rules off."""
    said = output.read_text(errors="replace")
    errors = [line for line in said.splitlines() if line.startswith("ringtrain: ")]
    lines = [line for line in (said.split(RULE)[0].strip() or said).splitlines() if line.strip("- ")]
    return "\n".join(errors[:1] or lines[-TOLD_LINES:])
