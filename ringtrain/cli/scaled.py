"""Trainings of ringtrain, and scripts of PyTorch, that ``ringtrain scale`` measures, and the runs of a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain.child import child_command
from ringtrain.cli.commands import FOLDER, LAUNCHER, read_script
from ringtrain.cli.options import explicit_flags
from ringtrain.cli.train import train
from ringtrain.config.option import NEVER
from ringtrain.errors import UsageError
from ringtrain.train.checkpoints.resume import Origin, resolve_run
from ringtrain.train.options import read_options

# Rank 0 saves alone, and the others go on meanwhile: its next iteration would be too short. So a run saves and
# evaluates at its end alone.
ONCE = ("--checkpoint-every", str(NEVER), "--evaluate-every", str(NEVER))
PLACE = "{batch}"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a round. ``batch``: over all ranks; None: the script's own. ``scalings``: the kinds that it counts for,
    "strong", "weak" or both"""

    ranks: int
    batch: int | None
    scalings: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{'-'.join(self.scalings)}-{self.ranks}"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A training, or a command that starts a script."""

    words: Sequence[str]  # as they stand after --
    batch: int | None  # of all ranks in strong scaling, of a rank in weak; None: the script's own
    options: Sequence[str] = ()  # the words up to the script; none of a training

    @property
    def is_script(self) -> bool:
        return bool(self.options)

    def planned(self, counts: Sequence[int], scalings: Sequence[str]) -> list[PlannedRun]:
        """Return the runs of a round. One rank has the same batch in both kinds of scaling, and one run for both."""
        kinds: dict[tuple[int, int | None], list[str]] = {}
        for scaling in scalings:
            for ranks in counts:
                batch = self.batch * ranks if scaling == "weak" and self.batch else self.batch
                kinds.setdefault((ranks, batch), []).append(scaling)
        return [PlannedRun(*key, tuple(names)) for key, names in kinds.items()]

    def command(self, run: PlannedRun, folder: Path) -> list[str]:
        """Return what each rank of a run starts."""
        if not self.is_script:
            words = [*self.words, *ONCE, "--batch", str(run.batch), "--out", str(folder)]
            return child_command("ringtrain", *words)
        share = "" if run.batch is None else str(run.batch // run.ranks)
        script = [word.replace(PLACE, share) for word in self.words[len(self.options) :]]
        return [*self.options, "--out", str(folder), *script]

    def unlike(self, run: PlannedRun, batch: int, sample: dict) -> str:
        """Return why a script's run of this batch is none of its scaling beside an earlier run's, or nothing."""
        is_weak = run.scalings == ("weak",)
        wanted = sample["batch"] // sample["ranks"] * run.ranks if is_weak else sample["batch"]
        if not self.is_script or batch == wanted:
            return ""
        kind = f"{run.scalings[-1]} scaling wants {wanted:,}, as {sample['ranks']} had {sample['batch']:,}"
        return f"its steps have {batch:,} examples over {run.ranks} ranks, and {kind}: {PLACE} is the batch of one rank"


def read_scaled(words: Sequence[str], batch: int | None, scalings: Sequence[str], counts: Sequence[int]) -> Scaled:
    """Return what these words start, after the checks that need neither data nor ranks. Raises UsageError."""
    if LAUNCHER in words:
        return _script(words, batch, scalings, counts)
    if not words or words[0] != "train":
        raise UsageError(
            "scale measures `train` with options, or python -m ringtrain.torch with a script, after --: ringtrain "
            f"scale -n 1,2 -- train; got {repr(words[0]) if words else 'nothing'}"
        )
    if batch is not None:
        raise UsageError(f"--batch {batch} before -- is of a script; a training has its own: -- train --batch {batch}")
    params = dict(train.make_context("ringtrain train", list(words[1:])).params)
    config, _ = resolve_run(Origin(), read_options(params.pop("run_file"), explicit_flags(params)))
    if config.run.out is not None or config.run.resume is not None:
        raise UsageError(
            "scale names the folders of the runs, and each begins anew: leave "
            f"{'--out' if config.run.out is not None else '--resume'} out after --"
        )
    return Scaled(words, config.run.batch)


def _script(words: Sequence[str], batch: int | None, scalings: Sequence[str], counts: Sequence[int]) -> Scaled:
    options, script, parsed = read_script(words, "scale")
    if parsed.out != FOLDER:
        raise UsageError("scale names the folders of the runs: leave --out out after --")
    if any(PLACE in word for word in script) != (batch is not None):
        missing = "--batch B before --" if batch is None else f"{PLACE} in the command"
        raise UsageError(f"{PLACE} is the batch of one rank, made from --batch B; {missing} is missing")
    if "strong" in scalings and batch is None:
        raise UsageError(
            f"strong scaling divides a batch among the ranks, and the command has no {PLACE}: put it where the script "
            "takes the batch of one rank, and give --batch B; or give --weak alone, where each rank keeps its batch"
        )
    uneven = [ranks for ranks in counts if "strong" in scalings and batch is not None and batch % ranks]
    if uneven:
        raise UsageError(f"--batch {batch} cannot be divided among {uneven[0]} ranks: give a multiple of each of -n")
    return Scaled(words, batch, options)
