"""Runs go on in folders that were damaged, one damage after another: for the benchmark beside it."""

import contextlib
import io
import json
import random
import traceback
from pathlib import Path

from fire_regions import canary, copied, damages
from fire_run import NET, records

from ringtrain.errors import RingtrainError
from ringtrain.train.start import start
from ringtrain.transport.loopback import LoopbackWorld


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
