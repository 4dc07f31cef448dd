"""Readers of texts: run files, model files, tuning files, logs, sweeps; environment and command line."""

import json
from contextlib import suppress
from pathlib import Path

from ringtrain.bench.files import COMPARED, read_json
from ringtrain.bench.gates import regressions
from ringtrain.bench.tune import choice_lines
from ringtrain.cli.models import _layer_table
from ringtrain.config import TrainConfig
from ringtrain.errors import RingtrainError
from ringtrain.exchange.machine import Layout
from ringtrain.exchange.reductions import anywhere
from ringtrain.exchange.tuning import Model, Row, Table, Tuning
from ringtrain.exchange.tuning_file import Place, fitting, read
from ringtrain.nn import spec
from ringtrain.report import plots
from ringtrain.report.comparison import notes_of, rows_of
from ringtrain.report.comparison_table import csv_text, plain_lines
from ringtrain.report.runs import read_run
from ringtrain.report.sinks import cut
from ringtrain.resolve import read_run_file, recipe_layer, resolve, to_table
from ringtrain.train import norms, slow, tracing
from ringtrain.train.recipe import rate_of
from scripts.fuzz.mutation import any_of, lines, of_json, of_json_lines, of_toml, reword, spoil
from scripts.fuzz.reader import Reader, written
from scripts.fuzz.samples import LOG, RUN_FILES

MODELS = Path(spec.__file__).parents[2] / "models"


# ── TOML ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _run_file(data: bytes, folder: Path):
    path = written(folder, "bad.toml", data)
    return lambda: look_at(resolve((f"run file {path}", read_run_file(str(path)))))


def look_at(config: TrainConfig) -> None:
    """What a configuration says in words and numbers, as training reads it before it begins."""
    to_table(config)
    norms.is_whole(config)
    tracing.window_of(config, 0)
    slow.slowed(None, config.slow, 1, 4)
    total = config.iterations or 100
    rate = rate_of(config, total, 23)
    for iteration in (0, 1, 1000, total - 1):
        rate.at(iteration)


def _model_file(data: bytes, folder: Path):
    path = written(folder, "bad.toml", data)

    def read_model() -> None:
        model = spec.load(path)
        _layer_table(model.graph(), 64)
        resolve(recipe_layer(model.name, model.recipe))

    return read_model


def _models() -> list[bytes]:
    small = ("digits", "lenet", "resnet20", "cifar10_quick")
    return [path.read_bytes() for path in sorted(MODELS.glob("*.toml")) if path.stem in small]


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────
MACHINE = {"cpu": "x", "cores": "2", "library": "Open MPI 5.0.8", "transport": "ob1"}


def _tunings() -> list[bytes]:
    rows = tuple(Row(a, "float32", "sum", n, 1e-6 * n, True) for a in ("ring", "mpi") for n in (1024, 4096, 65536))
    models = (Model("ring", "float32", "sum", 0.0, 1e-6, 1e-9), Model("mpi", "float32", "sum", 2048.0, 2e-6, 1e-9))
    table = Table(Layout("1x2", 2, 1), "2026-01-31", rows, models)
    return [Tuning(MACHINE, {"1x2": table}).text().encode()]


def _tuning(data: bytes, folder: Path):
    place = Place(written(folder, "bad.json", data), "--tuning")

    def explain() -> None:
        tuning = read(place)
        tuning.text()
        with suppress(RingtrainError):
            fitting(tuning, place, MACHINE, Layout("1x2", 2, 1))
        for table in tuning.tables.values():
            choice_lines(table, anywhere(Layout("1x2", 2, 1), "float32"), [1024, 3000, 1 << 24], "float32", "sum", True)

    return explain


def _sweeps() -> list[bytes]:
    row = dict.fromkeys(COMPARED, 2) | {"status": "ok", "samples_s": [0.1, 0.2, 0.15], "algorithm": "ring"}
    row |= {"dtype": "float32", "op": "sum", "placement": "in"}
    return [json.dumps({"header": {}, "rows": [row, {**row, "bytes": 4}]}).encode()]


def _sweep(data: bytes, folder: Path):
    path = written(folder, "bad.json", data)
    fresh = json.loads(_sweeps()[0])["rows"]
    fresh = [{**row, "wire_dtype": "float32", "device": "cpu", "way": "-", "reason": ""} for row in fresh]

    def compare() -> None:
        old = read_json(path)["rows"]
        with suppress(RingtrainError):  # nothing in common, which names no file
            regressions(old, fresh, 0.05)

    return compare


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _log(data: bytes, folder: Path):
    written(folder, "bad/log.jsonl", data)
    other = written(folder, "good/log.jsonl", LOG)

    def compare() -> None:
        runs = [read_run(folder / "bad", "bad"), read_run(other.parent, "good")]
        rows = rows_of(runs)
        json.dumps([rows, notes_of(runs, rows)])
        plain_lines(rows, 120)
        csv_text(rows)
        plots.has_iterations(folder / "bad/log.jsonl")
        _curves(plots.read(folder / "bad/log.jsonl"))

    return compare


def _curves(log: dict) -> None:
    """All of a picture but its drawing, which takes a hundred times as long."""
    for kind, name in (("iteration", "loss"), ("epoch", "test_loss"), ("evaluation", "test_accuracy")):
        x, y = plots.series(log[kind], name, 100.0)
        plots.thin(x, plots.running_mean(y))
    plots._title(log)


def _cut_log(data: bytes, folder: Path):
    written(folder, "good/log.jsonl", LOG)
    path = folder.parent / f"{folder.name}.cut"  # what is cut is meant to change

    def shorten() -> None:
        path.write_bytes(data)
        try:
            cut(path, 2)
            assert data.startswith(path.read_bytes())
        finally:
            path.unlink()

    return shorten


TEXTS = (
    Reader(
        "run-file",
        "TOML run files",
        lambda: RUN_FILES,
        any_of(of_toml, of_toml, reword, lines, spoil),
        _run_file,
        ("bad.toml", "--", "lr_", "batch_norm", "warmup"),
    ),
    Reader(
        "model-file",
        "TOML model files, blocks too",
        _models,
        any_of(of_toml, of_toml, reword, lines, spoil),
        _model_file,
        ("bad",),
    ),
    Reader("tuning", "tuning JSON", _tunings, any_of(of_json, of_json, reword, spoil), _tuning, ("bad.json",)),
    Reader("sweep", "JSON of bench-allreduce", _sweeps, any_of(of_json, of_json, reword, spoil), _sweep, ("bad.json",)),
    Reader(
        "log",
        "log.jsonl, as compare and curves read it",
        lambda: [LOG],
        any_of(of_json_lines, of_json_lines, reword, lines, spoil),
        _log,
        ("bad",),
    ),
    Reader(
        "log-cut",
        "log.jsonl of a run that is resumed",
        lambda: [LOG],
        any_of(of_json_lines, reword, lines, spoil),
        _cut_log,
    ),
)
