"""Reads from a run's options what is done to images, and opens image files with all ranks together."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ringtrain.config.option import as_flag
from ringtrain.config.record import DataConfig, DeviceConfig, TrainConfig
from ringtrain.data.batches.pictures import PictureSplit, StoredPictures, View
from ringtrain.data.batches.transforms import ColourJitter, RandomResizedCrop, Transform, TrivialAugment
from ringtrain.data.file.dataset import DataSet
from ringtrain.data.image_files.index import Tables
from ringtrain.data.image_files.open import open_images, open_parts
from ringtrain.data.split import Split
from ringtrain.errors import ConfigError
from ringtrain.nn import shapes
from ringtrain.nn.spec import ModelSpec
from ringtrain.parsing import whole_number
from ringtrain.transport.agree import together
from ringtrain.transport.base import Transport

MOST_PIXELS = 1 << 15  # of a side
MOST_THREADS = 16
CLASSES_ALONE = ("resize", "random_resized_crop", "colour_jitter", "trivial_augment", "mixup", "cutmix")


# ── options ─────────────────────────────────────────────────────────────────────────────────────────────────
def resize_of(config: DataConfig) -> tuple[int, int] | int | None:
    """``--resize``: (height, width), the length of the shorter side, or None. Raises ConfigError"""
    if config.resize is None:
        return None
    sides = [whole_number(side) or 0 for side in config.resize.split("x")]
    if len(sides) > 2 or not all(0 < side <= MOST_PIXELS for side in sides):
        raise ConfigError(
            f"--resize {config.resize!r} is neither HxW nor one number of pixels (from 1 to {MOST_PIXELS}), such as "
            "224x224 or 256"
        )
    return (sides[0], sides[1]) if len(sides) == 2 else sides[0]


def _size_of(model: ModelSpec) -> tuple[int, int]:
    """(height, width) of the model's input."""
    height, width, *_ = model.input.shape
    return height, width


def _numbers(text: str, separator: str, count: int) -> list[float] | None:
    try:
        numbers = [float(part) for part in text.split(separator)]
    except ValueError:
        return None
    return numbers if len(numbers) == count and all(np.isfinite(numbers)) else None


def transform_of(config: DataConfig, model: ModelSpec) -> Transform | None:
    """What training does to each image on the host; None: nothing. Raises ConfigError"""
    crop, changes = None, list[ColourJitter | TrivialAugment]()
    if config.random_resized_crop is not None:
        scale = _numbers(config.random_resized_crop, ":", 2)
        if scale is None or not 0 < scale[0] <= scale[1] <= 1:
            raise ConfigError(
                f"--random-resized-crop {config.random_resized_crop!r} is no LEAST:MOST, shares of the image's area "
                "from above 0 to 1, such as 0.08:1"
            )
        crop = RandomResizedCrop(*_size_of(model), (scale[0], scale[1]))
    if config.trivial_augment:
        changes.append(TrivialAugment())
    if config.colour_jitter is not None:
        factors = _numbers(config.colour_jitter, ",", 4)
        if factors is None or min(factors) < 0 or factors[3] > 0.5:
            raise ConfigError(
                f"--colour-jitter {config.colour_jitter!r} is no B,C,S,H: brightness, contrast and saturation from 0, "
                "hue from 0 to 0.5, such as 0.4,0.4,0.4,0.1"
            )
        changes.append(ColourJitter(*factors))
    return Transform(crop, tuple(changes)) if crop or changes else None


# ── data ────────────────────────────────────────────────────────────────────────────────────────────────────
def open_image_files(path: str, config: TrainConfig, model: ModelSpec, transport: Transport) -> DataSet:
    """Open a folder of images or tar shards. Collective: ranks divide the work. Raises ConfigError, DataError"""
    if len(model.input.shape) != 3:
        raise ConfigError(
            f"--data has images, but model {model.name!r} takes {shapes.format_shape(model.input.shape)}, not height "
            "x width x channels"
        )
    view, threads = View(_size_of(model), resize_of(config.data)), threads_of(config.device, transport)
    channels, divide, skip = model.input.shape[2], partial(_divide, transport), config.data.bad_images == "skip"
    data = open_images(path, view, channels, threads, divide, skip)
    if config.data.test_data is None:
        return data
    test = open_parts(config.data.test_data, view, channels, threads, divide, skip, data.classes)[0]["train"]
    return replace(data, test=test, notes=(*data.notes, *test.notes))


def viewed(data: DataSet, config: TrainConfig, model: ModelSpec, transport: Transport) -> DataSet:
    """The data set, with arrays under the view and the transform of the options. Raises ConfigError"""
    resize, threads = resize_of(config.data), threads_of(config.device, transport)
    asked = [name for name in CLASSES_ALONE if getattr(config.data, name) not in (None, False)]
    if asked and not (data.train.has_classes and len(data.train.shape) == 3):
        raise ConfigError(
            f"{as_flag(asked[0])} is for images with one class number each, which {data.name!r} does not have: leave "
            "it out"
        )
    transform = transform_of(config.data, model)
    if resize is not None or transform is not None:
        view = None if resize is None else View(_size_of(model), resize)

        def under(split: Split) -> Split:
            return split if isinstance(split, PictureSplit) else StoredPictures(split, view, threads)

        if view is not None and not isinstance(data.train, PictureSplit) and data.mean_image is not None:
            data = replace(data, mean_image=view.of(data.mean_image))
        data = replace(data, train=under(data.train), test=data.test and under(data.test))
    _check(model, data, transform)
    return data


def _check(model: ModelSpec, data: DataSet, transform: Transform | None) -> None:
    if transform is None:
        return
    train = data.train
    for change in transform.changes:
        if train.dtype != np.uint8 or train.shape[2] not in change.CHANNELS:
            raise ConfigError(
                f"{change.FLAG} changes images of 8 bits and {' or '.join(map(str, change.CHANNELS))} channels; those "
                f"of {data.name!r} are {train.dtype} {shapes.format_shape(train.shape)}: leave it out"
            )
    if model.input.mean == "image" and transform.size(train.shape) != train.shape[:2]:
        raise ConfigError(
            f"model {model.name!r} subtracts the mean image, and that of {shapes.format_shape(train.shape)} is no mean "
            'images of another size: say --resize with the size of the model\'s input, or take mean = "channel" in a '
            "copy of the model"
        )


def threads_of(config: DeviceConfig, transport: Transport) -> int:
    """The threads that decode a rank's images: its cores on a GPU's host, else half of them. Ranks that are not bound
    to cores share the cores of the node."""
    cores = len(os.sched_getaffinity(0))
    share = cores if cores < (os.cpu_count() or 1) else cores // transport.local_size
    return max(1, min(MOST_THREADS, share if config.device == "cuda" else share // 2))


def _divide(transport: Transport, count: int, work: Callable[[int], Tables]) -> list[Tables]:
    """Each rank does every size-th piece of work; results travel by broadcasts of bytes."""
    turns = [range(rank, count, transport.size) for rank in range(transport.size)]

    def touched(number: int) -> Tables:
        transport.activity.touch()
        return work(number)

    rank_tables = together(transport, lambda: [touched(number) for number in turns[transport.rank]])
    forms = transport.gather_json(
        [{name: [array.dtype.str, list(array.shape)] for name, array in table.items()} for table in rank_tables]
    )
    tables: list[Tables] = [{} for _ in range(count)]
    for rank, form in enumerate(forms):
        piece_tables = rank_tables
        if rank != transport.rank:
            piece_tables = [{name: np.empty(shape, dtype) for name, (dtype, shape) in each.items()} for each in form]
        arrays = [array for table in piece_tables for array in table.values() if array.size]
        if arrays:
            flat = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
            transport.broadcast(flat, rank)
            _fill(arrays, flat)
        for number, table in zip(turns[rank], piece_tables, strict=True):
            tables[number] = table
    return tables


def _fill(arrays: list[np.ndarray], flat: np.ndarray) -> None:
    start = 0
    for array in arrays:
        if array.flags.writeable:
            array.reshape(-1).view(np.uint8)[...] = flat[start : start + array.nbytes]
        start += array.nbytes
