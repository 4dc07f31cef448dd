"""Checkpoints under fire: how many run folders are unusable afterwards, of how many. 0 is wanted, and else exit 1.

Kills: SIGKILL at random moments, half of them while a file is half written, of a writer that does nothing but save, of
a run of one rank, of rank 0 of two, of mpirun with all that it started, and of the copy of rank 0 that saves when
mpirun is stopped. Each next start goes on by itself (``--resume auto``) until it has saved again; at the end the log
has every iteration once, in order, and a run of one rank ends with the weights of one that was never killed.

Damage: one bit in every part of every file of a run's folder; every file cut before each of its parts; a folder, a
pipe, a link or nothing in a file's place; no permissions. Each run then goes on, and must end with the weights of an
undamaged one, saying what it passed over where the newest checkpoint was hit; a file that a link leads to elsewhere is
as it was. What could have gone on and did not counts as unusable, and so does anything that ends with a traceback.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from fire_regions import canary, copied, damages

from ringtrain.checkpoint.files import PARTIAL
from ringtrain.checkpoint.run_folder import RunFolder
from ringtrain.errors import RingtrainError
from ringtrain.train.start import start
from ringtrain.transport.loopback import LoopbackWorld

NET = """
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "fc1", kind = "Linear", units = WIDE },
  { name = "relu", kind = "ReLU" },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "fc2", kind = "Linear", units = 10 },
]
[recipe]
batch = 60
lr = 0.02
momentum = 0.9
"""
PATIENCE_S = 120.0
LIKELY = {"writer": 0.4, "one rank": 0.3, "rank 0 of 2": 0.15, "mpirun": 0.08, "lifeboat": 0.07}
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


def arguments(net: Path, out: Path, **flags) -> list[str]:
    given = {"model": net, "data": "digits", "ops": "reference", "out": out, "resume": "auto", **flags}
    options = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return [sys.executable, "-m", "ringtrain", "train", *options]


class Shots:
    """One folder for each way of killing, killed again and again."""

    def __init__(self, root: Path, seed: int):
        self.root, self.draw = root, random.Random(seed)
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
        if kind == "lifeboat":
            done = subprocess.run(arguments(self.net, folder.path, iterations=3), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
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
        every = 1000 if kind == "lifeboat" else 1
        command = arguments(self.net, folder.path, iterations=10**6, checkpoint_every=every, evaluate_every=10**6)
        return command if kind == "one rank" else ["mpirun", "--bind-to", "none", "-np", "2", *command]

    def once(self, kind: str, folder: RunFolder, before: int) -> None:
        """Start, wait until it has gone on, and kill."""
        with tempfile.TemporaryFile("w+") as told:
            run = subprocess.Popen(self.command(kind, folder), stdout=told, stderr=told, start_new_session=True)
            try:
                self.wait(run, lambda: self.went_on(kind, folder, before))
                time.sleep(self.draw.uniform(0, 0.15))
                self.kill(kind, run, folder)
            except TimeoutError:
                self.end(run)
                told.seek(0)
                self.fail(f"{kind}: did not go on from iteration {before}:\n{told.read()[-1500:]}")
            run.wait(PATIENCE_S)
            told.seek(0)
            if "Traceback" in (text := told.read()):
                self.fail(f"{kind}: a traceback:\n{text[-1500:]}")

    def went_on(self, kind: str, folder: RunFolder, before: int) -> bool:
        if kind == "lifeboat":  # which saves nothing before it is stopped
            return last_iteration(folder.log) > before + 2
        numbers = [int(found[1]) for name in names(folder) if (found := re.fullmatch(r"iteration-(\d+)\.h5", name))]
        return max(numbers, default=0) > before

    def wait(self, run, ready) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            if run.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.005)

    def kill(self, kind: str, run, folder: RunFolder) -> None:
        if kind == "lifeboat":
            self.sink_the_boat(run, folder)
            return
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

    def sink_the_boat(self, run, folder: RunFolder) -> None:
        """mpirun is stopped; the copy of rank 0 that then saves is killed in turn."""
        parent = rank_0(run.pid, folder)
        run.send_signal(signal.SIGTERM)
        while alive := of_folder(folder):  # until it, too, is through, where it was missed
            boats = [number for number in alive if number != parent and leads_a_session(number)]
            if boats:
                time.sleep(self.draw.uniform(0, 0.01))
                self.halves["lifeboats"] += 1
                kill(boats[0])
                return
            time.sleep(0.0005)

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


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def kill(number: int | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def children(number: int) -> list[int]:
    told = subprocess.run(["pgrep", "-P", str(number)], capture_output=True, text=True).stdout.split()
    return [each for child in map(int, told) for each in (child, *children(child))]


def rank_0(number: int, folder: RunFolder) -> int:
    for child in children(number):
        with contextlib.suppress(OSError):
            if b"OMPI_COMM_WORLD_RANK=0\0" in Path(f"/proc/{child}/environ").read_bytes():
                return child
    raise TimeoutError


def of_folder(folder: RunFolder) -> list[int]:
    """Processes that were started for it."""
    told = subprocess.run(["pgrep", "-f", f"ringtrain train .*{folder.path}"], capture_output=True, text=True)
    return [int(number) for number in told.stdout.split()]


def leads_a_session(number: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(number) == number and "mpirun" not in Path(f"/proc/{number}/comm").read_text()
    return False


def names(folder: RunFolder) -> list[str]:
    try:
        return os.listdir(folder.checkpoints)
    except FileNotFoundError:
        return []


def records(out: Path, kind: str) -> list[dict]:
    lines = (out / "log.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == kind]


def last_iteration(log: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(re.findall(rb'"iteration": (\d+)', log.read_bytes()[-4000:])[-1])
    return 0


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def train(net: Path, out: Path, **flags) -> tuple[int, str]:
    """(exit code, what it told) of a run in this process; -1 and the traceback of what is no error of ours."""
    told = io.StringIO()
    given = {"model": str(net), "data": "digits", "ops": "reference", "out": str(out), "resume": "auto", **flags}
    with contextlib.redirect_stdout(told):
        try:
            start(LoopbackWorld(1).transport(0), None, given)
        except RingtrainError as error:
            return error.exit_code, f"{told.getvalue()}\n{error}"
        except Exception:
            return -1, f"{told.getvalue()}\n{traceback.format_exc()}"
    return 0, told.getvalue()


def burn(root: Path, seed: int, stride: int) -> tuple[int, list[str]]:
    """Every damage in turn; how many, and what went wrong."""
    net = root / "small.toml"
    net.write_text(NET.replace("WIDE", "12"))
    good, failures = root / "good", []
    code, told = train(net, good, iterations=12, checkpoint_every=3, evaluate_every=6, keep=3)
    assert code == 0, told
    train(net, root / "unbroken", iterations=14, checkpoint_every=3, evaluate_every=6, keep=3)
    wanted = records(root / "unbroken", "end")[-1]["weights_sha256"]
    count = 0
    for number, damage in enumerate(damages(good, random.Random(seed))):
        if number % stride:
            continue
        count += 1
        out = copied(good, root / "burnt")
        damage.do(out / damage.file)
        code, told = train(net, out, iterations=14)
        problem = _problem(out, damage, code, told, wanted)
        if problem:
            failures.append(f"{damage.file}, {damage.what}: {problem}")
            print(f"FAILED {failures[-1]}", flush=True)
        if canary(good).read_text() != "mine\n" or (root / "canary").stat().st_size != 5:
            failures.append(f"{damage.file}, {damage.what}: a file elsewhere was changed")
    return count, failures


def _problem(out: Path, damage, code: int, told: str, wanted: str) -> str:
    if code:
        return f"ended with {code}:\n{told[-1500:]}"
    kinds = [
        json.loads(line) for line in (out / "log.jsonl").read_bytes().splitlines() if line[:1] == b"{" and _ok(line)
    ]
    ends = [record["weights_sha256"] for record in kinds if record["event"] == "end"]
    if ends != [wanted]:
        return f"other weights than an undamaged run: {ends}"
    hit = damage.file.endswith("iteration-00000012.h5") and damage.what not in ("not there", "no permissions")
    notes = " ".join(record["text"] for record in kinds if record["event"] == "note")
    if hit and not ("passed over" in told and "iteration-00000012.h5" in notes):
        return f"nothing was said of it:\n{told}"
    return ""


def _ok(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return line[:1] == b"{" and "event" in json.loads(line)
    return False


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
