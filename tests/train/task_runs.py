"""Small runs of each loss: a net, and a data set of random numbers with labels of its shape."""

import numpy as np
from small_runs import iterate, means

from ringtrain.config.resolve import resolve
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.split import ArraySplit
from ringtrain.nn import spec
from ringtrain.ops.catalogue import make_ops
from ringtrain.train.assembly.assemble import assemble

COUNT, BATCH = 37, 10  # the fourth batch is a tail of 7


def net(shape, *layers):
    """A model file. ``layers``: (kind, settings)"""
    tables = [f'[[layers]]\nname = "l{i}"\nkind = "{kind}"\n{settings}\n' for i, (kind, settings) in enumerate(layers)]
    return f'[input]\nshape = {list(shape)}\nmean = "channel"\nstd = "channel"\n' + "".join(tables)


CONV = ("Conv2D", "channels = 5\nkernel = 3\npad = 1"), ("ReLU", "")
FLAT = ("Flatten", "")
TO_FIELD, TO_CLASSES = ("Conv2D", "channels = 1\nkernel = 1"), ("Conv2D", "channels = 4\nkernel = 1")
THREE = FLAT, ("Linear", "units = 9"), ("ReLU", ""), ("Linear", "units = 3")
ONE = ("Linear", "units = 6"), ("ReLU", ""), ("Linear", "units = 1")
random = np.random.default_rng(8)
NUMBERS, FIELDS = (random.random((COUNT, *shape)).astype(np.float32) for shape in ((3,), (6, 6)))
CLASSES, PIXELS, BINARY = (
    random.integers(-1, most, (COUNT, *shape)).astype(np.int32) for most, shape in ((7, ()), (4, (6, 6)), (2, (3,)))
)
UNITS = 'output = { mean = "channel", std = "channel" }\n'
TASKS = {
    "ce": (net((6, 6, 2), *CONV, FLAT, ("Linear", "units = 7")), "ce", CLASSES),
    "dense ce": (net((6, 6, 2), *CONV, TO_CLASSES), "ce", PIXELS),
    "mse of fields": (net((6, 6, 2), *CONV, TO_FIELD), "mse", FIELDS),
    "mse of units": (UNITS + net((6, 6, 2), *CONV, *THREE), "mse", 40 + NUMBERS * np.float32([9, 5, 1])),
    "mae of sequences": (net((5, 2), *THREE), "mae", NUMBERS),
    "mae of vectors": (net((6, 6, 2), *CONV, *THREE), "mae", NUMBERS),
    "huber of numbers": (net((12,), *ONE), "huber", NUMBERS[:, 0]),
    "bce of images": (net((6, 6, 2), *CONV, *THREE), "bce", BINARY),
    "bce": (net((2, 3, 3, 2), *THREE), "bce", BINARY),
}


def data_of(task, labels=None, nan_at=None) -> DataSet:
    model, _, default = TASKS[task]
    labels = default if labels is None else labels
    shape = spec.parse_model(model, "task").input.shape
    images = np.random.default_rng(9).integers(0, 256, (COUNT, *shape)).astype(np.uint8)
    inputs = images
    if nan_at is not None:
        inputs = images.astype(np.float32)
        inputs[nan_at, ..., 0] = np.nan
    split = ArraySplit(inputs, labels, "none")
    channels = (images.mean(axis=tuple(range(images.ndim - 1))), images.std(axis=tuple(range(images.ndim - 1))))
    classes = () if labels.dtype.kind == "f" or task.startswith("bce") else tuple("abcdefg" if task == "ce" else "abcd")
    exact = labels.astype(np.float64)
    moments = np.stack([exact.mean(axis=0), exact.std(axis=0)]) if labels.shape[1:] == (3,) else None
    return DataSet("task", split, split, classes, *channels, images.mean(axis=0), "made", label_moments=moments)


def task_run(transport, task, labels=None, ops=None, nan_at=None, **flags):
    """The assembly of a task's run, and its operations: those of its flags unless given."""
    text, loss, _ = TASKS[task]
    model = spec.parse_model(text, "task")
    options = {"model": "task", "loss": loss, "batch": BATCH, "lr": 0.1, "check_collectives": False, "dtype": "float64"}
    config = resolve(("flags", {**options, "ops": "reference", "iterations": 6, **flags}))
    ops = ops or make_ops(config.device.ops, config.device.dtype)
    return assemble(config, model, data_of(task, labels, nan_at), transport, ops, lambda: False), ops


def train_task(transport, task, iterations=6, **flags):
    """(loss of each iteration, host weights) after ``iterations``."""
    run, ops = task_run(transport, task, **flags)
    outcomes = iterate(run, transport, 0, iterations)
    run.exchange.serving.drain_peers()
    outcomes += run.worker.drain()
    run.exchange.synchronize()
    return means(outcomes), ops.to_host(run.arena.weights)
