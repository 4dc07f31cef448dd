"""Valid inputs, made by ringtrain's own writers where there is one."""

import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tomli_w

from ringtrain.checkpoint import store
from ringtrain.data.content import Content, Part
from ringtrain.data.format import write_dataset
from ringtrain.report.events import Ended, EpochEnded, Evaluated, Iteration, Note, Ranks, RunStarted, record

CLASSES_10 = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
RUN_FILES = [
    tomli_w.dumps(table).encode()
    for table in (
        {"model": "lenet", "batch": 128, "lr": 0.1, "lr_policy": "step", "lr_steps": [40], "iterations": 100},
        {"lr_policy": "multistep", "lr_steps": [10, 20], "lr_gamma": 0.1, "augment": False, "clip_norm": 1.0},
        {"trace": "t.json", "trace_iterations": "3:5", "slow": "1:2.5", "batch_norm": "ghost:16", "epochs": 3},
        {"sync": "averaging", "average_every": 4, "deadline_s": 20.0, "out": "runs/x", "lr_policy": "inv", "warmup": 5},
        {"lr_policy": "multistep", "lr_steps": ["1ep", 40, "2.5ep"], "warmup": "0.5ep", "epochs": 4},
    )
]


def _ranks(two: list) -> Ranks:
    return Ranks(**dict.fromkeys(Ranks.__slots__, two) | {"lag": {"clock": {"0": 5, "2": 1}}})


EVENTS = (
    RunStarted(
        version="0.1.0", model="digits", parameters=3, data="digits", train_examples=100, test_examples=10,
        strategy="allreduce (ring)", exact=True, ranks=2, nodes=1, device="CPU", dtype="float32", batch=64,
        optimizer="sgd", lr=0.05, schedule="cosine", epochs=2, iterations=4, iterations_per_epoch=2, resumed_at=0,
        seed=1, folder="runs/x",
    ),
    Note(text="a note"),
    *(
        Iteration(
            iteration=k, epoch=1, loss=2.3, accuracy=0.1, lr=0.05, examples=64, images_per_s=100.5, seconds=0.5 * k
        )
        for k in (1, 2, 3)
    ),
    EpochEnded(
        iteration=3, epoch=1, train_loss=1.5, train_accuracy=0.5, test_loss=0.75, test_accuracy=0.8, seconds=2.0,
        bytes_sent=1000,
    ),
    Evaluated(iteration=3, epoch=1, test_loss=0.5, test_accuracy=0.9, seconds=2.5, bytes_sent=None),
    _ranks([100, 200]),
    Ended(
        iterations=4, epochs=2, ranks=2, test_accuracy=0.9, test_loss=0.1, images_per_s=100.0, weights_sha256="ab" * 32,
        seconds=3.0, exposed_share=0.1, reason="done",
    ),
)  # fmt: skip
LOG = b"".join(json.dumps(record(event)).encode() + b"\n" for event in EVENTS)


def images(count: int, shape: tuple) -> np.ndarray:
    return np.arange(count * int(np.prod(shape)), dtype=np.int64).astype(np.uint8).reshape(count, *shape)


def data_sets() -> list[bytes]:
    part = Part(images(6, (4, 5, 3)), np.arange(6, dtype=np.int32) % 3)
    content = Content("tiny", part, Part(part.images[:2], part.labels[:2]), ("a", "b", "c"), "made up")
    with TemporaryDirectory() as folder:
        write_dataset(Path(folder) / "plain.h5", content)
        write_dataset(Path(folder) / "packed.h5", content, compress=True)
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def checkpoints() -> list[bytes]:
    """The HDF5 behind the seal."""
    weights = {"fc.weight": np.ones((3, 2), np.float32), "fc.bias": np.zeros(2, np.float32)}
    made = store.Checkpoint(
        iteration=7, examples_seen=448, epoch=1, weights=weights, optimizer={"velocity": weights},
        scalars={"step": 7, "loss": 0.5}, config="seed = 1\n", model="", model_name="m", fingerprint="",
        data_name="digits", data_checksum="ab" * 32, best=0.5, version="0.1.0",
    )  # fmt: skip
    made = store.Checkpoint(
        **{n: getattr(made, n) for n in made.__slots__} | {"fingerprint": store.fingerprint(made.shapes)}
    )
    with TemporaryDirectory() as folder:
        store.save(Path(folder) / "c.h5", made)
        return [(Path(folder) / "c.h5").read_bytes()]


def npz_archives() -> list[bytes]:
    x, y = images(4, (3, 2)), np.arange(4) % 3
    made = []
    for save, arrays in (
        (np.savez, {"x_train": x, "y_train": y, "x_test": x, "y_test": y}),
        (np.savez_compressed, {"x": x, "y": y}),
    ):
        file = io.BytesIO()
        save(file, **arrays)
        made.append(file.getvalue())
    return made


def pictures() -> list[bytes]:
    from PIL import Image

    made = []
    for kind, mode in (
        ("PNG", "RGB"),
        ("JPEG", "L"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("TIFF", "L"),
        ("PPM", "RGB"),
        ("WEBP", "RGB"),
    ):
        file = io.BytesIO()
        Image.new(mode, (5, 4), 100).save(file, kind)
        made.append(file.getvalue())
    return made
