"""Losses of the first iterations on the GPU beside those on the CPU, at several numbers of ranks, and by strategy."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

MODELS = ("lenet", "resnet20", "mlp", "cifar10_full")
RANKS = (1, 2, 4)
# Ways to exchange whose losses are those of all-reduce: each of them is run by two ranks on the net of STRATEGY_MODEL.
STRATEGIES = {
    "sharded": ("--sync", "sharded"),
    "master": ("--sync", "master"),
    "server": ("--sync", "server", "--servers", "2"),
    "hybrid": ("--fc", "hybrid"),
    "averaging every 1": ("--sync", "averaging", "--average-every", "1"),
    "ring": ("--algorithm", "ring"),
    "tree": ("--algorithm", "tree"),
    "butterfly": ("--algorithm", "butterfly"),
    "mapped": ("--algorithm", "mapped"),
    "overlap none": ("--overlap", "none"),
    "overlap forward": ("--overlap", "forward"),
}
STRATEGY_MODEL = "lenet"
# Of 128 examples each of 4 ranks has a ghost batch of 32.
ITERATIONS, BATCH, RATE = 20, 128, 0.01


class Failed(Exception):
    """A run's command and the end of its output."""


def losses(folder: Path, model: str, ranks: int, device: str, more=()) -> tuple[list[float], list[str]]:
    """(losses, what was noted of device memory). Raises Failed."""
    out = folder / "-".join([model, str(ranks), device, *more]).replace("/", "")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", ranks, sys.executable, "-m", "ringtrain"]
    command += ["train", "--model", model, "--synthetic", "--iterations", ITERATIONS, "--batch", BATCH, "--lr", RATE]
    command += ["--device", device, "--out", out, *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    records = list(map(json.loads, (out / "log.jsonl").read_text().splitlines()))
    notes = [record["text"] for record in records if record["event"] == "note" and "cannot run" in record["text"]]
    return [record["loss"] for record in records if record["event"] == "iteration"], notes


def row(folder: Path, wanted: list[float], what: str, model: str, ranks: int, more=()) -> dict:
    """Of a run on the GPU; one that fails is as far off as can be, and the others go on."""
    try:
        found, notes = losses(folder, model, ranks, "cuda", more)
    except Failed as failed:
        return {"what": what, "ranks": ranks, "largest difference": float("inf"), "said": str(failed)}
    worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted, strict=True))
    told = {"what": what, "ranks": ranks, "first": found[0], "last": found[-1], "largest difference": worst}
    return told | {"said": "; ".join(notes)}


def compared(folder: Path):
    for model in MODELS:
        wanted, _ = losses(folder, model, 1, "cpu")
        for ranks in RANKS:
            yield row(folder, wanted, model, model, ranks)
        if model == STRATEGY_MODEL:
            for name, flags in STRATEGIES.items():
                yield row(folder, wanted, f"{model}, {name}", model, 2, flags)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder, rows = parser.parse_args().folder, []
    for each in compared(folder):
        rows.append(each)
        print(each, flush=True)
        (folder / "rows.json").write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
