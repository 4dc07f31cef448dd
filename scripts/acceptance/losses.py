"""Losses of the first iterations on the GPU beside those on the CPU, at several numbers of ranks, and by strategy."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

MODELS = ("mlp", "lenet", "cifar10_full", "resnet20")
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
ITERATIONS, BATCH, RATE, TOLERANCE = 20, 32, 0.01, 1e-4


def losses(folder: Path, model: str, ranks: int, device: str, more=()) -> list[float]:
    """Raises SystemExit with the end of its output where the run fails."""
    out = folder / "-".join([model, str(ranks), device, *more]).replace("/", "")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", ranks, sys.executable, "-m", "ringtrain"]
    command += ["train", "--model", model, "--synthetic", "--iterations", ITERATIONS, "--batch", BATCH, "--lr", RATE]
    command += ["--device", device, "--out", out, *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["event"] == "iteration"]


def row(what: str, ranks: int, found: list[float], wanted: list[float]) -> dict:
    worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted, strict=True))
    return {"what": what, "ranks": ranks, "first": found[0], "last": found[-1], "largest difference": worst}


def compared(folder: Path):
    for model in MODELS:
        wanted = losses(folder, model, 1, "cpu")
        for ranks in RANKS:
            yield row(model, ranks, losses(folder, model, ranks, "cuda"), wanted)
        if model == STRATEGY_MODEL:
            for name, flags in STRATEGIES.items():
                yield row(f"{model}, {name}", 2, losses(folder, model, 2, "cuda", flags), wanted)


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
