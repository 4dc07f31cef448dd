"""The readers of files that others made, each with valid files to spoil: for tests/data and scripts/fuzz."""

import gzip
import io
import json
import os
import pickle
import tarfile
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tomli_w
from PIL import Image

from ringtrain.allreduce.machine import RankLayout
from ringtrain.allreduce.tuning_file import TuningSource, matching_table, read_tuning
from ringtrain.allreduce.tuning_table import Table, TimeModel, Tuning, TuningRow
from ringtrain.bench.sweep.files import SweepRow, read_json
from ringtrain.config.resolve import read_run_file, recipe_layer, resolve, to_table
from ringtrain.data.content import Content, memory_part
from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.write import write_dataset
from ringtrain.data.readers.make import make_dataset
from ringtrain.data.readers.sources import read_source
from ringtrain.errors import RingtrainError
from ringtrain.nn import spec
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.report.comparison import table
from ringtrain.report.comparison.logs import read_iterations, read_run
from ringtrain.report.comparison.over_seeds import variant_rows, variants_by_seed
from ringtrain.report.comparison.rows import notes_of, rows_of
from ringtrain.report.events import Evaluated, Note, Ranks, record
from ringtrain.report.page import read_metrics
from ringtrain.report.sinks import truncate_log
from ringtrain.runs.summary import list_runs
from ringtrain.runs.table import NAME, iterations_text, json_text, run_columns, sort_runs
from ringtrain.runs.table import csv_text as runs_csv
from ringtrain.show.tables import Column, fitting_tables, plain_lines
from ringtrain.storage.checkpoint import seal, store
from ringtrain.storage.run_folder.outcome import RunOutcome, read_outcome
from tests.data import source_makers as made
from tests.data.data_makers import write_packed
from tests.plan.plan_files import layers_file, sweep_file
from tests.report.conftest import ENDED, EPOCH, ITERATION, RUN

LONGEST = 20_000  # characters of a message
GARBLES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of Unicode that a terminal obeys or cannot show


def open_in(folder: Path) -> list[str]:
    """The files in a folder that this process has open. Others come and go with threads of earlier tests."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself is closed by now
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return [link for link in links if Path(link).is_relative_to(folder)]


@dataclass(frozen=True)
class Reader:
    """file:   the name of the file that is spoiled, in a folder of its own
    seeds:  makes valid contents of it
    read:   reads the file; where it wants others beside it, it writes them first
    names:  an error names one of these; the file, if there are none
    """

    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    names: tuple[str, ...] = ()

    def judge(self, data: bytes, folder: Path) -> str:
        """The message of the RingtrainError, or "" if the file is read. Any other error is a defect, and so are a
        message that a person cannot read, a file that is left or changed, and a descriptor that stays open."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        message = ""
        try:
            self.read(path)
        except RingtrainError as error:
            message = str(error)
            assert message.strip() and len(message) <= LONGEST, message[:300]
            assert any(name in message for name in self.names or (path.name,)), message[:300]
            assert not [c for c in message if c not in "\n\t" and unicodedata.category(c) in GARBLES], message[:300]
        assert not open_in(folder)
        assert path.read_bytes() == data
        return message


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────
RUN_FILES = (
    {"model": "lenet", "batch": 128, "lr": 0.1, "lr_policy": "step", "lr_steps": [40], "iterations": 100},
    {"trace": "t.json", "inject_slowdown": "1:2.5", "batch_norm": "ghost:16", "epochs": 3},
    {"lr_policy": "multistep", "lr_steps": ["1ep", 40, "2.5ep"], "warmup": "0.5ep", "clip_norm": 1.0, "augment": False},
)
MODELS = Path(spec.__file__).parents[2] / "models"
LAYOUT = RankLayout("1x2", 2, 1)
MACHINE = {"cpu": "x", "cores": "2", "library": "Open MPI 5.0.8", "transport": "ob1"}
EVENTS = (
    RUN,
    Note(text="a note"),
    ITERATION,
    replace(EPOCH, iteration=3, bytes_sent=1000),
    Evaluated(iteration=3, epoch=1, test_loss=0.5, test_accuracy=0.9, seconds=2.5, bytes_sent=None),
    Ranks(**{name: [100, 200] for name in Ranks.__slots__} | {"lag": {"clock": {"0": 5, "2": 1}}}),
    ENDED,
)


def run_file(path: Path) -> None:
    to_table(resolve((f"run file {path}", read_run_file(str(path)))))


def model_file(path: Path) -> None:
    model = spec.load_model(path)
    model.graph()
    resolve(recipe_layer(model.name, model.recipe))


def tunings() -> list[bytes]:
    rows = tuple(TuningRow(a, "float32", "sum", n, 1e-6 * n, True) for a in ("ring", "mpi") for n in (1024, 65536))
    models = (
        TimeModel("ring", "float32", "sum", 0.0, 1e-6, 1e-9),
        TimeModel("mpi", "float32", "sum", 2048.0, 2e-6, 1e-9),
    )
    return [Tuning(MACHINE, {"1x2": Table(2, 1, "2026-01-31", rows, models)}).text().encode()]


def tuning_file(path: Path) -> None:
    tuning = read_tuning(TuningSource(path, "--tuning"))
    tuning.text()
    with suppress(RingtrainError):  # of another machine
        matching_table(tuning, TuningSource(path, "--tuning"), MACHINE, LAYOUT)


def sweeps() -> list[bytes]:
    row = SweepRow(
        algorithm="ring", ranks=2, nodes=2, bytes=2, dtype="float32", op="sum", placement="in", status="ok",
        samples_s=(0.1, 0.2, 0.15),
    )  # fmt: skip
    return [json.dumps({"header": {}, "rows": [asdict(row)]}).encode()]


def show(name: Column, groups, rows) -> None:
    [plain_lines(shown) for shown in fitting_tables(name, groups, rows, 120)]


def over_seeds(runs) -> None:
    rows = rows_of(runs, {run.name: "v" for run in runs})
    variants = variant_rows(rows)
    json.dumps([variants, notes_of(runs, rows), variants_by_seed(runs)])
    show(table.VARIANT_NAME, table.VARIANT_GROUPS, variants), table.csv_text(rows, variants)


def log(path: Path) -> None:
    runs = [read_run(path.parent, "bad")]
    rows = rows_of(runs)
    json.dumps([rows, notes_of(runs, rows)])
    listed, notes = list_runs(path.parent)
    json_text(listed, notes), runs_csv(listed), iterations_text(read_iterations(path.parent))
    show(NAME, *run_columns(listed)), sort_runs(listed, "-test_loss")
    show(table.NAME, table.GROUPS, rows), table.csv_text(rows)
    over_seeds([*runs, replace(runs[0], name="beside")])
    with TemporaryDirectory() as folder:  # what is cut is meant to change
        (Path(folder) / "log").write_bytes(path.read_bytes())
        truncate_log(Path(folder) / "log", 2)
        assert path.read_bytes().startswith((Path(folder) / "log").read_bytes())


def written_metrics() -> list[bytes]:
    values = {"labelled": 3, "predicted": 2, "precision": 0.5, "recall": None, "f1": 0.5, "iou": 1.0}
    classes = [{"class": name} | values for name in "ab"]
    content = {"checkpoint": "c.h5", "split": "test", "iteration": 7, "classes": classes, "confusion": [[2, 1], [0, 3]]}
    return [json.dumps(content).encode()]


def outcomes() -> list[bytes]:
    return [json.dumps(asdict(RunOutcome("diverged", 3, 1500, 3000, 3, (1,), "the loss is nan\nand more"))).encode()]


def measured(write: Callable[[Path], str], **more) -> Callable[[], list[bytes]]:
    """A file for plans. ``more``: of its header"""

    def seeds() -> list[bytes]:
        with TemporaryDirectory() as folder:
            return [Path(write(Path(folder), **more)).read_bytes()]

    return seeds


# ── HDF5 ──────────────────────────────────────────────────────────────────────────────────────────────────────
def written(write: Callable[[Path], object]) -> bytes:
    with TemporaryDirectory() as folder:
        write(Path(folder) / "a.h5")
        return (Path(folder) / "a.h5").read_bytes()


def data_sets() -> list[bytes]:
    images = np.arange(360, dtype=np.int64).astype(np.uint8).reshape(6, 4, 5, 3)
    part = memory_part(images, np.arange(6, dtype=np.int32) % 3)
    content = Content("tiny", part, memory_part(images[:2], np.arange(2, dtype=np.int32)), ("a", "b", "c"), "made up")
    return [written(lambda path, write=write: write(path, content)) for write in (write_dataset, write_packed)]


def data_set(path: Path) -> None:
    problems = check_file(path)
    open_dataset(path)
    assert not [text for text in problems if "off by" not in text], f"it opens, and yet: {problems}"


def checkpoints() -> list[bytes]:
    """The HDF5 behind the seal."""
    weights = {"fc.weight": np.ones((3, 2), np.float32), "fc.bias": np.zeros(2, np.float32)}
    saved = store.Checkpoint(
        iteration=7, examples_seen=448, epoch=1, weights=weights, optimizer={"velocity": weights},
        scalars={"step": 7, "loss": 0.5}, config="seed = 1\n", model="", model_name="m", best=0.5, version="0.1.0",
        fingerprint=store.fingerprint({name: array.shape for name, array in weights.items()}),
        data_name="digits", data_checksum="ab" * 32,
    )  # fmt: skip
    return [written(lambda path: store.save_checkpoint(path, saved))[seal.BLOCK :]]


def sealed_checkpoint(path: Path) -> None:
    """Sealed anew, so that the content is looked at."""
    content = path.read_bytes()
    with TemporaryDirectory() as folder:
        sealed = Path(folder) / path.name
        sealed.write_bytes(seal.make_seal(memoryview(content)) + content)
        store.load_checkpoint(sealed)


# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────
def source(path: Path) -> None:
    """What a source becomes can be opened."""
    with TemporaryDirectory() as folder:
        make_dataset(path, Path(folder) / "made.h5")
        open_dataset(Path(folder) / "made.h5")


def idx_seeds() -> list[bytes]:
    whole = made.idx(np.arange(24, dtype=np.uint8).reshape(4, 3, 2))
    return [whole, gzip.compress(whole)]


def idx(path: Path) -> None:
    path.with_name("train-labels-idx1-ubyte").write_bytes(made.idx(np.arange(4, dtype=np.uint8)))
    source(path.parent)


def cifar(files: dict[str, bytes]) -> Callable[[Path], None]:
    def read_folder(path: Path) -> None:
        made.in_folder(path.parent, {name: data for name, data in files.items() if name != path.name})
        source(path.parent)

    return read_folder


PYTHON = made.cifar10_python()


def archives() -> list[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("test_batch", "batches.meta"):
            member = tarfile.TarInfo(f"é/{name}")
            member.size = len(PYTHON[name])
            archive.addfile(member, io.BytesIO(PYTHON[name]))
    return [file.getvalue(), gzip.compress(file.getvalue())]


def npz_archives() -> list[bytes]:
    files = [io.BytesIO(), io.BytesIO()]
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 3, 2), np.arange(4) % 3
    np.savez(files[0], x_train=x, y_train=y, x_test=x, y_test=y)
    np.savez_compressed(files[1], x=x, y=y)
    return [file.getvalue() for file in files]


def pictures() -> list[bytes]:
    files = [io.BytesIO() for _ in range(4)]
    for file, (kind, mode) in zip(files, (("PNG", "RGB"), ("JPEG", "L"), ("GIF", "P"), ("BMP", "RGB")), strict=True):
        Image.new(mode, (5, 4), 100).save(file, kind)
    return [file.getvalue() for file in files]


def picture(path: Path) -> None:
    read_source(path.parent.parent, (3, 4))


READERS = {
    "run file": Reader(
        "bad.toml",
        lambda: [tomli_w.dumps(table).encode() for table in RUN_FILES],
        run_file,
        ("bad.toml", "--", "lr_", "batch_norm", "warmup"),
    ),
    "model file": Reader(
        "bad.toml", lambda: [(MODELS / f"{name}.toml").read_bytes() for name in ("lenet", "resnet20")], model_file
    ),
    "tuning file": Reader("bad.json", tunings, tuning_file),
    "sweep": Reader("bad.json", sweeps, read_json),
    "log": Reader(
        "bad/log.jsonl", lambda: [b"".join(json.dumps(record(e)).encode() + b"\n" for e in EVENTS)], log, ("bad",)
    ),
    "layers": Reader("bad.json", measured(layers_file), lambda path: LayerTimes([str(path)])),
    "fabric": Reader(
        "bad.json", measured(sweep_file, core_s_per_byte=0.0, beside_s_per_byte=1e-9),
        lambda path: ExchangeTimes(str(path)),
    ),
    "outcome": Reader("outcome.json", outcomes, lambda path: read_outcome(path.parent)),
    "metrics": Reader("bad.json", written_metrics, read_metrics),
    "data set": Reader("bad.h5", data_sets, data_set),
    "checkpoint": Reader("bad.h5", checkpoints, sealed_checkpoint),
    "checkpoint as it is": Reader("bad.h5", checkpoints, store.load_checkpoint),
    "IDX": Reader("bad/train-images-idx3-ubyte", idx_seeds, idx, ("bad",)),
    "CIFAR python": Reader(
        "bad/data_batch_3", lambda: [pickle.dumps(pickle.loads(PYTHON["data_batch_3"]), k) for k in (2, 5)],
        cifar(PYTHON), ("bad",),
    ),
    "CIFAR names": Reader("bad/batches.meta", lambda: [PYTHON["batches.meta"]], cifar(PYTHON), ("bad",)),
    "archive": Reader("bad.tar", archives, read_source),
    "npz": Reader("bad.npz", npz_archives, source),
    "image": Reader("bad/rose/1.png", pictures, picture, ("bad",)),
}  # fmt: skip
