"""Opens the data set of a configuration, in memory or in its files, and says which network takes it, in which order."""

from functools import partial
from pathlib import Path

import numpy as np

from ringtrain.config.record import DataConfig, TrainConfig
from ringtrain.data.batches.order import BLOCKS, FULL_BYTES, Windows
from ringtrain.data.batches.synthetic import synthetic
from ringtrain.data.file.dataset import DataSet, NodeMemory, open_dataset
from ringtrain.data.file.grammar import Layout
from ringtrain.data.image_files.open import accepts as image_files
from ringtrain.data.image_files.split import ImageFilesSplit
from ringtrain.data.split import Shape, Split
from ringtrain.errors import ConfigError, DataError, everywhere
from ringtrain.launch.doctor.cgroup import free_bytes
from ringtrain.nn import shapes
from ringtrain.nn.losses import make_loss
from ringtrain.nn.spec import IMAGE_EXTENTS, InputSpec, ModelSpec
from ringtrain.train.assembly.images import open_image_files, viewed
from ringtrain.transport.agree import agree, together
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers


def read_data(config: TrainConfig, model: ModelSpec, transport: Transport) -> DataSet:
    """Open the same data set on every rank; collective."""
    data = together(transport, lambda: open_data(config, model, transport))
    agree(transport, {"data checksum": data.checksum})
    return data


def open_data(config: TrainConfig, model: ModelSpec, transport: Transport) -> DataSet:
    """Open the configuration's data set, under the view that its options give; collective: over the node, which holds
    arrays once, or over all ranks, which divide the headers of image files."""
    return viewed(_stored(config, model, transport), config, model, transport)


def _stored(config: TrainConfig, model: ModelSpec, transport: Transport) -> DataSet:
    if config.data.synthetic:
        graph = model.graph()
        form, classes = make_loss(config.model).labels_of(graph.shapes[graph.output])
        largest = min(255, (graph.entries or 256) - 1)
        return synthetic(model.input.shape, classes, config.run.batch, config.run.seed, form.shape, largest)
    if config.data.data is None and config.model.model != "digits":
        raise ConfigError(
            f"model {config.model.model!r} has no data set of its own: give --data F.h5 (made by `ringtrain data "
            "make`), or --synthetic"
        )
    path, activity = config.data.data or "digits", transport.activity
    has_images = transport.gather_json(image_files(path))
    if len(set(has_images)) > 1:
        images, others = (peers(np.flatnonzero(np.equal(has_images, has))) for has in (True, False))
        raise everywhere(
            DataError(
                f"{path} is a folder or shards of images on {images}, and not on {others}: give all ranks the same "
                "data and folder"
            )
        )
    if has_images[0]:
        if config.data.test_data is not None and not image_files(config.data.test_data):
            raise ConfigError(
                f"--data {path} has image files, but --test-data {config.data.test_data} has none: name a folder of "
                "images or tar shards there"
            )
        with activity.holds_gil(f"opening images {path}"):
            return open_image_files(path, config, model, transport)
    limit = _most_in_memory(config.data, transport)
    node = NodeMemory(transport.node_window, partial(_await_reader, transport, path), transport.local_rank == 0)
    with activity.holds_gil(f"opening data {path}"):
        return open_dataset(
            path,
            node if transport.local_size > 1 else None,
            lambda *_: activity.touch(),
            test=config.data.test_data,
            extents=len(model.input.shape),
            most_bytes=limit,
            layout=Layout(config.data.layout, config.data.ignore_label),
        )


def _most_in_memory(config: DataConfig, transport: Transport) -> int | None:
    """The largest data set, in bytes, that is kept in memory; None: any. The same on all ranks; collective."""
    if config.stream != "auto":
        return 0 if config.stream == "yes" else None
    free = [nbytes for nbytes in transport.gather_json(free_bytes(Path("/"))) if nbytes is not None]
    return min(free) // 2 if free else None


def _await_reader(transport: Transport, path: str) -> None:
    with transport.activity.during(f"waiting until data {path} are read"):
        transport.node_barrier()


def windows_of(shuffle: str | None, train: Split) -> Windows | None:
    """The windows of an order by blocks; None for one permutation of all examples. The set alone decides where the
    order is not given, so that it is the same on any machine. Image files are often sorted by class, and are read one
    by one: theirs is one permutation."""
    large = train.count * train.row_bytes > FULL_BYTES and not isinstance(train, ImageFilesSplit)
    return Windows.of(train.count, train.row_bytes) if shuffle == BLOCKS or (shuffle is None and large) else None


def check_images(model: ModelSpec, name: str, shape: Shape) -> None:
    """Raise DataError if the network does not take examples of this shape. ``name``: of the data set"""
    if not takes(model.input, tuple(shape)):
        first, *others = shape
        turned = takes(model.input, (*others, first))
        hint = "give --layout channels-first (here, or to `data make`), " if turned else ""
        images, wanted = shapes.format_shape(shape), shapes.format_shape(model.input.shape)
        raise DataError(
            f"data set {name!r} has examples of {images}, but model {model.name!r} takes {wanted}: "
            f"{hint}use another data set or model, or --resize for images of one class number each"
        )


def takes(spec: InputSpec, stored: tuple[int, ...]) -> bool:
    """Return whether a network takes examples of this shape. An image of one channel is a sequence of its rows, too."""
    if len(spec.shape) != IMAGE_EXTENTS or len(stored) != IMAGE_EXTENTS:
        return stored in (spec.shape, (*spec.shape, 1))
    (h, w, c), (height, width, channels) = stored, spec.shape
    return c == channels and height <= h + 2 * spec.pad and width <= w + 2 * spec.pad
