"""Checkpoints under fire: how many run folders are unusable afterwards, of how many. 0 is wanted, and else exit 1.

Kills: SIGKILL at random moments, half of them while a file is half written, of a writer that does nothing but save, of
a run of one rank, of rank 0 of two, and of mpirun with all that it started. Each next start goes on by itself
(``--resume auto``) until it has saved again; at the end the log has every iteration once, in order, and a run of one
rank ends with the weights of one that was never killed.

Damage: one bit in every part of every file of a run's folder; every file cut before each of its parts; a folder, a
pipe, a link or nothing in a file's place; no permissions. Each run then goes on, and must end with the weights of an
undamaged one, saying what it passed over where the newest checkpoint was hit; a file that a link leads to elsewhere is
as it was. What could have gone on and did not counts as unusable, and so does anything that ends with a traceback.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fire_damage import burn
from fire_run import (
    NET,
    arguments,
    await_end,
    children,
    kill,
    names,
    rank_0,
    records,
)

from ringtrain.checkpoint.run_folder import RunFolder
from ringtrain.errors import RingtrainError
from ringtrain.files import PARTIAL

PATIENCE_S = 120.0
LIKELY = {"writer": 0.4, "one rank": 0.3, "rank 0 of 2": 0.15, "mpirun": 0.15}
WRITER = """
import sys, numpy as np
from ringtrain.checkpoint.run_folder import RunFolder
from ringtrain.checkpoint.store import Checkpoint, fingerprint
folder = RunFolder(sys.argv[1])
folder.checkpoints.mkdir(exist_ok=True)
folder.claim(resume=True)
k = folder.latest().checkpoint.iteration if not folder.is_empty() else 0
folder.supersede(k)
while True:
    k += 1
    weights = {"a": np.full((200, 300), k, np.float32), "b": np.full(10, k, np.float32)}
    folder.save(Checkpoint(k, k, 0, weights, {"momentum": weights}, {"step": k}, "", "", "m",
        fingerprint({n: w.shape for n, w in weights.items()}), "d", "c", None, "v"), 2, k % 3 == 0)
    print(k, flush=True)
"""


class Shots:
    """One folder for each way of killing, killed again and again."""

    def __init__(self, root: Path, seed: int):
        self.root, self.draw = root, random.Random(seed)
        # Those that are killed leave folders with their numbers, and the next of that number would not start.
        self.session = ("--prtemca", "prte_tmpdir_base", str(root))
        self.net = root / "net.toml"
        self.net.write_text(NET.replace("WIDE", "1500"))
        self.failures: list[str] = []
        self.halves = Counter()

    def fail(self, text: str) -> None:
        self.failures.append(text)
        print(f"FAILED {text}", flush=True)

    def shoot(self, kind: str, count: int) -> None:
        folder = RunFolder(self.root / kind.replace(" ", "-"))
        folder.path.mkdir()
        for shot in range(count):
            before = self.newest(folder)
            self.once(kind, folder, before)
            self.check(kind, shot, folder, before)
        if kind != "writer":
            self.finish(kind, folder)

    def newest(self, folder: RunFolder) -> int:
        return folder.latest().checkpoint.iteration if not folder.is_empty() else 0

    def command(self, kind: str, folder: RunFolder) -> list[str]:
        if kind == "writer":
            return [sys.executable, "-c", WRITER, str(folder.path)]
        command = arguments(self.net, folder.path, iterations=10**6, checkpoint_every=1, evaluate_every=10**6)
        return command if kind == "one rank" else ["mpirun", *self.session, "--bind-to", "none", "-np", "2", *command]

    def once(self, kind: str, folder: RunFolder, before: int) -> None:
        """Start, wait until it has gone on, and kill."""
        with tempfile.TemporaryFile("w+") as told:
            run = subprocess.Popen(self.command(kind, folder), stdout=told, stderr=told, start_new_session=True)
            try:
                self.wait(run, lambda: self.went_on(folder, before))
                time.sleep(self.draw.uniform(0, 0.15))
                self.kill(kind, run, folder)
            except TimeoutError:
                self.end(run)
                told.seek(0)
                self.fail(f"{kind}: did not go on from iteration {before}:\n{told.read()[-1500:]}")
            run.wait(PATIENCE_S)
            await_end(folder, PATIENCE_S)
            told.seek(0)
            if "Traceback" in (text := told.read()):
                self.fail(f"{kind}: a traceback:\n{text[-1500:]}")

    def went_on(self, folder: RunFolder, before: int) -> bool:
        numbers = [int(found[1]) for name in names(folder) if (found := re.fullmatch(r"iteration-(\d+)\.h5", name))]
        return max(numbers, default=0) > before

    def wait(self, run, ready) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            if run.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.005)

    def kill(self, kind: str, run, folder: RunFolder) -> None:
        if self.draw.random() < 0.5:
            self.await_half(folder)
        if kind == "rank 0 of 2":
            kill(rank_0(run.pid, folder))
        elif kind == "mpirun":
            everyone = [run.pid, *children(run.pid)]
            for number in everyone:
                kill(number)
        else:
            kill(run.pid)

    def await_half(self, folder: RunFolder) -> None:
        for _ in range(20000):
            if any(name.endswith(PARTIAL) for name in names(folder)):
                return

    def end(self, run) -> None:
        for number in [run.pid, *children(run.pid)]:
            kill(number)

    def check(self, kind: str, shot: int, folder: RunFolder, before: int) -> None:
        """That there is a good checkpoint, no older than the one before, and nothing that was passed over."""
        self.halves["killed in the middle of a file"] += any(name.endswith(PARTIAL) for name in names(folder))
        try:
            found = folder.latest()
        except RingtrainError as error:
            self.fail(f"{kind}, kill {shot}: {error}")
            return
        if found.checkpoint.iteration < before or found.skipped:
            self.fail(f"{kind}, kill {shot}: iteration {found.checkpoint.iteration} after {before}, {found.skipped}")

    def finish(self, kind: str, folder: RunFolder) -> None:
        """It ends in good order; and of one rank, with the weights of a run that was never killed."""
        until = self.newest(folder) + 3
        ends = []
        for out in (folder.path, self.root / "whole")[: 2 if kind == "one rank" else 1]:
            flags = {"iterations": until, "checkpoint_every": until, "evaluate_every": 10**6}
            done = subprocess.run(arguments(self.net, out, **flags), capture_output=True, text=True, timeout=900)
            if done.returncode:
                self.fail(f"{kind}: the last start ended with {done.returncode}:\n{done.stderr[-1500:]}")
                return
            ends.append(records(out, "end")[-1]["weights_sha256"])
        if len(set(ends)) > 1:
            self.fail(f"{kind}: the weights are not those of an unbroken run")
        seen = [record["iteration"] for record in records(folder.path, "iteration")]
        if seen != list(range(1, until + 1)):
            self.fail(f"{kind}: the log has not each of {until} iterations once")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(LIKELY), help="ways of killing")
    parser.add_argument("--stride", type=int, default=1, help="of so many damages one is done; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ringtrain-fire-"))
    shots, began = Shots(root, options.seed), time.monotonic()
    kinds = options.kinds.split(",")
    whole = sum(LIKELY[kind] for kind in kinds)
    done = 0
    for kind in kinds:
        count = round(options.kills * LIKELY[kind] / whole)
        if kind == kinds[-1]:
            count = options.kills - done
        if count:
            shots.shoot(kind, count)
            done += count
            print(f"{count:4} kills of {kind}: {time.monotonic() - began:.0f} s so far", flush=True)
    burnt, failures = burn(root, options.seed, options.stride) if options.stride else (0, [])
    print(f"{done} kills ({', '.join(f'{count} {what}' for what, count in shots.halves.items())}): ", end="")
    print(f"{len(shots.failures)} unusable run folders or worse")
    print(f"{burnt} damages: {len(failures)} unusable run folders or worse; {time.monotonic() - began:.0f} s")
    if not (shots.failures or failures):
        shutil.rmtree(root)
        return 0
    print(f"what is left is in {root}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
