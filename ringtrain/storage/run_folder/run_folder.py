"""The folder of a run, and the search for a checkpoint that a user names.

runs/lenet-20260131-235959/
    config.toml                            the resolved configuration
    log.jsonl                              every event
    curves.png
    outcome.json                           the outcome
    checkpoints/iteration-00001234.h5      the newest few
    checkpoints/best.h5                    the one with the best test accuracy: another name of its file
    checkpoints/superseded-*.h5            of iterations after one that the run was resumed at: no longer used
    .lock                                  held by the one process that writes: rank 0 of the run
"""

import contextlib
import datetime
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import CheckpointError, UsageError
from ringtrain.storage import files
from ringtrain.storage.checkpoint import store
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.storage.files import Folder
from ringtrain.storage.run_folder import lock, outcome

RUNS = Path("runs")
_NUMBERED = re.compile(r"iteration-([0-9]{8,})\.h5")


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A good checkpoint, its path, and a sentence about each one passed over."""

    path: Path
    checkpoint: Checkpoint
    skipped: tuple[str, ...] = ()


class RunFolder:
    """Paths in a run's folder, and its checkpoints. Making one touches no disk: see :func:`create_run_folder`.

    ``root``, ``checkpoint_folder``: the folder and its checkpoints folder, to write in
    ``lock``: keeps other runs out; None before :meth:`claim`
    """

    def __init__(self, path):
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.log = self.path / "log.jsonl"
        self.curves = self.path / "curves.png"
        self.outcome = self.path / outcome.NAME
        self.checkpoints = self.path / "checkpoints"
        self.best = self.checkpoints / "best.h5"
        self.root = Folder(self.path)
        self.checkpoint_folder = Folder(self.checkpoints, self.root)
        self.lock: lock.Lock | None = None

    def claim(self, resume: bool) -> list[str]:
        """Keep other runs out until :meth:`release` or this process's end, and remove the files of killed writers.
        Returns notes about it for the user.

        Raises: UsageError if another run is at work here, or was since and is not resumed;
        RingtrainError, UsageError as ``files.write``.
        """
        self.lock = lock.take_lock(self.path)
        _refuse(self, resume)
        self.root.remove_partials()
        self.checkpoint_folder.remove_partials()
        return [self.lock.warning] if self.lock.warning else []

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def check_idle(self) -> None:
        """Raise UsageError if another run is at work here: its files may still change."""
        if os.path.lexists(self.path / lock.NAME):
            lock.take_lock(self.path).release()

    def save(self, checkpoint: Checkpoint, keep: int, is_best: bool) -> Path:
        """Write a checkpoint, then remove all numbered ones but the newest ``keep`` and checkpoints of later
        iterations.

        The best one is written under that name first: a crash between the two names leaves a best one that is newer
        than the newest, which the resumed run reaches again, and never a best one that is not the best.

        Raises: RingtrainError, UsageError as ``files.write``; earlier checkpoints still exist then.
        """
        path = self.numbered(checkpoint.iteration)
        if is_best:
            store.save_checkpoint(self.best, checkpoint, self.checkpoint_folder)
            self.checkpoint_folder.link(self.best, path)
        else:
            store.save_checkpoint(path, checkpoint, self.checkpoint_folder)
        until = [each for each in self._newest_first() if _iteration(each) <= checkpoint.iteration]
        for old in until[keep:]:
            with contextlib.suppress(OSError):  # the new one is saved, and the next call tries again
                self.checkpoint_folder.remove(old)
        return path

    def numbered(self, iteration: int) -> Path:
        return self.checkpoints / f"iteration-{iteration:08}.h5"

    def latest(self, ranks: bool = True, best: bool = False) -> FoundCheckpoint:
        """Return the newest good checkpoint, passing over damaged ones; the best one is the last resort, or with
        ``best`` the first choice. ``ranks``: as of :func:`ringtrain.storage.checkpoint.store.load_checkpoint`.

        Raises: CheckpointError if there is none, naming those passed over.
        """
        newest = self._newest_first()
        return _first_good(self, [self.best, *newest] if best else [*newest, self.best], ranks)

    def is_empty(self) -> bool:
        """Return whether there is no checkpoint, good or not. Raises OSError."""
        return not os.path.lexists(self.best) and not self._newest_first()

    def supersede(self, iteration: int) -> list[Path]:
        """Rename checkpoints of iterations after this one, for a run that is resumed here: they belong to an abandoned
        future, and must neither be resumed from nor crowd out new ones. Returns their new paths.

        The best one goes with them if it is of a later iteration, or damaged.

        Raises: RingtrainError, UsageError as ``files.write``.
        """
        later = [path for path in self._newest_first() if _iteration(path) > iteration]
        if os.path.lexists(self.best) and not _is_until(self, iteration):
            later.append(self.best)
        return [self.checkpoint_folder.put_aside(path) for path in later]

    def best_so_far(self) -> float | None:
        """Return the test accuracy that the best checkpoint holds; None if there is no good one."""
        try:
            return store.load_checkpoint(self.best, self.checkpoint_folder.open).best
        except UsageError:
            return None

    def _newest_first(self) -> list[Path]:
        """Return the numbered checkpoints. Raises OSError if the folder cannot be read: that does not
        mean it is empty; UsageError if it is a link."""
        try:
            named = [name for name in self.checkpoint_folder.names() if _NUMBERED.fullmatch(name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((self.checkpoints / name for name in named), key=_iteration, reverse=True)


def create_run_folder(
    out: str | None, model_name: str, now: datetime.datetime, resume: bool, runs: Path = RUNS
) -> RunFolder:
    """Make the folder of a run, and its checkpoints folder: ``out``, or one named by model and time in
    ``runs``. A resumed run may already have a folder. Existing files stay as they are: see
    :meth:`RunFolder.claim`.

    Raises: UsageError if the folder cannot be made or written, is a file, or holds a run that is not
    resumed.
    """
    try:
        folder = RunFolder(out if out is not None else make_unused_folder(runs, model_name, now))
        _refuse(folder, resume)
        folder.checkpoint_folder.make()
    except (FileExistsError, NotADirectoryError) as error:
        path = Path(out or runs) / "checkpoints"
        file = next((each for each in (path, *path.parents) if each.exists() and not each.is_dir()), path)
        raise UsageError(
            f"run folder {out or runs}: {file} is a file, but must be a folder; name another with --out"
        ) from error
    except OSError as error:
        raise files.unwritable(error, Path(out or runs), 0) from error
    for directory in (folder.root, folder.checkpoint_folder):  # before hours of training
        probe = f"writable.{os.getpid()}{files.PARTIAL}"
        directory.write(probe, b"?")
        directory.remove(probe)
    return folder


def find_checkpoint(target, best: bool = False, ranks: bool = True) -> FoundCheckpoint:
    """Find the checkpoint that a user names by its file, a run's folder, or the checkpoints folder in it.

    In a folder it is the newest good checkpoint, or with ``best`` the best one if it exists. ``ranks``: as of
    :func:`ringtrain.storage.checkpoint.store.load_checkpoint`.

    Raises: CheckpointError if there is none, or the named file is damaged.
    """
    path = Path(target)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist: give a checkpoint's file or a run's folder{_beside(path)}")
    if not path.is_dir():
        return FoundCheckpoint(path, store.load_checkpoint(path, ranks=ranks))
    return RunFolder(run_folder_of(path)).latest(ranks, best)


def make_unused_folder(runs: Path, name: str, now: datetime.datetime) -> Path:
    """Make a new folder, named by model and time; two runs that start in the same second get one each."""
    stem = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}-{now:%Y%m%d-%H%M%S}"
    runs.mkdir(parents=True, exist_ok=True)
    path, k = runs / stem, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            k += 1
            path = runs / f"{stem}-{k}"


def _refuse(folder: RunFolder, resume: bool) -> None:
    names = [path.name for path in (folder.config, folder.log) if path.exists()]
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names += [name for name in folder.checkpoint_folder.names() if name.endswith(".h5")][:1]
    if names and not resume:
        raise UsageError(
            f"run folder {folder.path} already holds a run ({', '.join(names)}); continue it with --resume auto, or "
            "name another folder with --out"
        )


def _first_good(folder: RunFolder, paths: list[Path], ranks: bool) -> FoundCheckpoint:
    skipped: list[str] = []
    for path in filter(os.path.lexists, paths):
        try:
            return FoundCheckpoint(path, _loaded(folder, path, ranks), tuple(skipped))
        except CheckpointError as error:
            skipped.append(str(error))
    if skipped:
        raise CheckpointError(f"no checkpoint of {folder.path} is good: {'; '.join(skipped)}")
    raise CheckpointError(
        f"{folder.path} holds no checkpoint: give a run's folder or a checkpoint's file{_beside(folder.path)}"
    )


def _loaded(folder: RunFolder, path: Path, ranks: bool) -> Checkpoint:
    checkpoint = store.load_checkpoint(path, folder.checkpoint_folder.open, ranks)
    numbered = _NUMBERED.fullmatch(path.name)
    if numbered and int(numbered[1]) != checkpoint.iteration:
        raise CheckpointError(
            f"checkpoint {path} is of iteration {checkpoint.iteration}, but its name gives another: the file was "
            "renamed; name it itself to continue from it"
        )
    return checkpoint


def run_folder_of(path: Path) -> Path:
    """Return the run's folder for a path to it or to its checkpoints folder."""
    within = path.resolve().name == "checkpoints" and not (path / "checkpoints").is_dir()
    return path.resolve().parent if within else path


def _beside(path: Path) -> str:
    """Name the runs beside a path, for an error about it."""
    runs = sorted(each.parent.name for each in path.parent.glob("*/checkpoints") if each.parent != path)
    return f" (beside it: {', '.join(runs[-5:])})" if runs else ""


def _is_until(folder: RunFolder, iteration: int) -> bool:
    """Return whether the best checkpoint is a good one of this iteration or an earlier one."""
    try:
        return store.load_checkpoint(folder.best, folder.checkpoint_folder.open).iteration <= iteration
    except CheckpointError:
        return False


def _iteration(path: Path) -> int:
    """Return the iteration in a numbered checkpoint's name."""
    return int(path.stem.rpartition("-")[2])
