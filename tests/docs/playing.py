"""A document's commands, one after another, as someone would type them in a fresh folder."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.markdown import Step, anew, differences, steps
from tests.mpi.conftest import ENVIRONMENT as OF_RANKS
from tests.mpi.conftest import find_mpirun

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("RINGTRAIN_LONG_RUNS") == "1"  # as scripts/check-full sets it
REWRITE = os.environ.get("RINGTRAIN_REWRITE_DOCS") == "1"
PATIENCE_S = 900  # until a command hangs
ENVIRONMENT = {
    **OF_RANKS,
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # a machine may have fewer cores than a document
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "COLUMNS": "80",
}


@dataclass(frozen=True)
class Plan:
    """How commands of a document are run here, each as it is written there.

    before:  commands that a reader of the page has run, on other pages
    instead: other commands in their place: a nearest one where a machine lacks something
    more:    flags put behind, so that they take seconds
    long:    left to scripts/check-full
    unlike:  why what is shown is of another run, and is not compared
    absent:  why one is not run at all; a program is named by its first line
    """

    before: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)
    long: tuple[str, ...] = ()
    unlike: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def named(self) -> set[str]:
        return {*self.instead, *self.more, *self.long, *self.unlike, *self.absent}

    def shown(self, step: Step) -> tuple[str, ...]:
        """What the command prints, if that is compared."""
        return () if step.command in self.unlike else step.shown

    def command(self, step: Step) -> str | None:
        """None: it is not run."""
        if step.command in self.absent or (step.command in self.long and not LONG):
            return None
        more = self.more.get(step.command, "") if not (REWRITE and self.shown(step)) else ""
        return f"{self.instead.get(step.command, step.command)} {more}".strip()


class Stage:
    """A fresh folder, with ringtrain, python and mpirun on the path. Skips the test where there is no MPI."""

    def __init__(self, folder: Path):
        self.folder, programs = folder / "here", folder / "bin"
        for subfolder in (self.folder, programs, folder / "sessions"):
            subfolder.mkdir()
        for name, words in (("python", ""), ("ringtrain", "-m ringtrain ")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
            (programs / name).chmod(0o755)
        path = os.pathsep.join([str(programs), str(Path(find_mpirun()).parent), os.environ["PATH"]])
        environ = {"PATH": path, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config")}
        environ["PRTE_MCA_prte_tmpdir_base"] = str(folder / "sessions")
        self._environment = {**os.environ, **ENVIRONMENT, **environ}

    def run(self, command: str) -> subprocess.CompletedProcess:
        where = {"cwd": self.folder, "env": self._environment, "timeout": PATIENCE_S}
        return subprocess.run(["bash", "-c", command], stdout=-1, stderr=-2, text=True, **where)  # both in one


def play(document: Path, stage: Stage, plan: Plan) -> None:
    """Run all of it; every command ends with 0, and prints what the document shows. With RINGTRAIN_REWRITE_DOCS=1 the
    document is made to show what they print."""
    text = document.read_text()
    shown_anew, problems = {}, []
    for command in plan.before:
        done = stage.run(command)
        assert done.returncode == 0, f"before {document.name}: $ {command}\n{done.stdout}"
    for step in steps(text):
        if step.file:
            if step.name not in plan.absent:
                _make(stage, step)
        elif (command := plan.command(step)) is not None:
            done = stage.run(command)
            said, shown = done.stdout.splitlines(), plan.shown(step)
            where = f"{document.relative_to(ROOT)}, line {step.line}: $ {command}"
            assert done.returncode == 0, f"{where}\nended with {done.returncode}:\n{done.stdout}"
            different = differences(shown, said) if shown else ""
            problems += [f"{where}\n{different}"] if different else []
            shown_anew[step.line] = (len(shown), anew(shown, said) if shown else [])
    if REWRITE:
        _rewrite(document, shown_anew)
    else:
        assert not problems, "\n\n".join([*problems, "RINGTRAIN_REWRITE_DOCS=1 writes them anew"])


def _make(stage: Stage, step: Step) -> None:
    """A file of the document; a program without a name is run at once."""
    (stage.folder / step.file).write_text(step.command)
    if step.file == "unnamed.python":
        done = stage.run(f"python {step.file}")
        assert done.returncode == 0, f"the program of line {step.line}:\n{done.stdout}"


def _rewrite(document: Path, shown: dict) -> None:
    lines = document.read_text().splitlines()
    for line, (count, new_lines) in sorted(shown.items(), reverse=True):
        if count:
            lines[line - 1 : line - 1 + count] = new_lines
    document.write_text("\n".join(lines) + "\n")
