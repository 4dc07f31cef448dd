"""ringtrain's side of :mod:`loader`: the batches of a run, without the run. A program that serves :mod:`side`."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from loader_set import FORMS, TINY, TINY_SIDE, Form
from side import forget, on_cores, options_and_rank, serve

from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.batches import Batches
from ringtrain.data.batches.draws import Draws
from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.data.batches.keys import TRANSFORM, make_key
from ringtrain.data.batches.sampler import EvenParts, Sampler
from ringtrain.data.batches.transforms import RandomResizedCrop, Transform
from ringtrain.data.image_files.split import ImageFilesSplit
from ringtrain.data.images import FilePicture
from ringtrain.nn import spec
from ringtrain.train.assembly.data import open_data, windows_of
from ringtrain.train.assembly.images import transform_of
from ringtrain.train.assembly.recipe import augment_of
from ringtrain.transport.world import connect

MODEL, WARM_UP = "resnet50", 4  # batches before the time begins: those that wait are made before
STAGED = 300  # images


class Loader:
    """The training part of a form of the set, as a run on a GPU's host reads it: with threads on the cores that this
    process may use."""

    def __init__(self, folder: str, form: Form, batch: int, transport):
        model = spec.load_model(MODEL)
        data = form.path.replace("FOLDER", folder)
        flags = {"model": MODEL, "data": data, "batch": batch, "device": "cuda"}
        flags |= {"stream": form.stream, "random_resized_crop": "0.08:1" if form.crop else None}
        config = resolve(recipe_layer(model.name, model.recipe), ("flags", flags))
        self.files, self._batch, self.seed = Path(folder) / form.files, batch, config.run.seed
        self.train = open_data(config, model, transport).train
        self._windows = windows_of(config.data.shuffle, self.train)
        self.transform, self._augment = transform_of(config.data, model), augment_of(config.data, model)
        if form is TINY:
            self.transform = Transform(RandomResizedCrop(TINY_SIDE, TINY_SIDE, (1.0, 1.0)))
            self._augment = Augment(0, False, TINY_SIDE, TINY_SIDE, centre=True)

    def batches(self) -> Batches:
        sampler = Sampler(self.train.count, self._batch, self.seed, windows=self._windows)
        changes = Changes(self.transform, self._augment)
        gather = Gather(self.train, sampler, EvenParts(), changes, self.seed)
        return Batches(gather, ((iteration, 0) for iteration in itertools.count()))

    def warm(self, seconds: float) -> dict:
        """The rate in the middle of a run."""
        with self.batches() as batches:
            for _ in range(WARM_UP):
                next(batches)
            return _counted(batches, lambda images, s: s < seconds)

    def cold(self) -> dict:
        """The rate of the first epoch, of files that are not in memory."""
        forget([str(self.files.parent if self.files.is_file() else self.files)])
        with self.batches() as batches:
            return _counted(batches, lambda images, s: images < self.train.count)

    def stages(self) -> dict[str, float]:
        """The CPU seconds of an image by stage, in one thread."""
        examples = np.random.default_rng(1).permutation(self.train.count)[:STAGED].tolist()
        out = np.empty((224, 224, 3), np.uint8)
        spent = dict.fromkeys(("read", "decode", "crop and resize"), 0.0)
        read = self.train.content if isinstance(self.train, ImageFilesSplit) else self.train.picture
        for example in examples:
            box, began = self._box(example), time.thread_time()
            read(example)
            reread = time.thread_time()
            picture = self.train.picture(example)
            if isinstance(picture, FilePicture):
                picture.decoded()
            cut = time.thread_time()
            picture.cut(box, out)  # of what is decoded
            spent["read"] += reread - began
            spent["decode"] += (cut - reread) - (reread - began) if isinstance(picture, FilePicture) else 0.0
            spent["crop and resize"] += time.thread_time() - cut
        return {name: seconds / len(examples) for name, seconds in spent.items()}

    def work(self, out: str, count: int) -> None:
        """Write what becomes of the first images, mirrored as on the device, and the boxes: for another side to do the
        same."""
        with self.batches() as batches:
            batch = next(batches)
            examples, flips = batch.examples[:count].copy(), batch.flip[:count].copy()
            images = [image[:, ::-1] if flip else image for image, flip in zip(batch.images, flips, strict=False)]
            boxes = [self._box(example) for example in examples.tolist()]
            np.savez(out, examples=examples, images=np.stack(images), flips=flips, boxes=boxes)

    def _box(self, example: int) -> tuple[int, int, int, int]:
        if self.transform is None:
            return 0, 0, *self.train.shape[:2]
        picture, draws = self.train.picture(example), Draws(make_key(TRANSFORM, self.seed, 0, example))
        return self.transform.crop.box(picture.height, picture.width, draws)

    def facts(self) -> dict:
        """The bytes of an image in its files, and in the batch that is uploaded."""
        files = [self.files] if self.files.is_file() else [each for each in self.files.rglob("*") if each.is_file()]
        size = 224 if self.transform is not None else self.train.shape[0]
        return {"file": sum(each.stat().st_size for each in files) / self.train.count, "upload": size * size * 3}


def _counted(batches: Batches, goes_on: Callable[[int, float], bool]) -> dict:
    """Return the images, seconds and CPU seconds of batches, while ``goes_on(images, seconds)``."""
    images, began, cpu = 0, time.perf_counter(), time.process_time()
    while goes_on(images, time.perf_counter() - began):
        images += len(next(batches).images)
    return {"images": images, "seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


if __name__ == "__main__":
    options, transport = options_and_rank()[0], connect()

    def make(name: str, cores: int) -> Loader:
        return Loader(options.folder, FORMS.get(name, TINY), options.batch, transport)

    serve(on_cores(make, "warm", "cold", "stages", "work", "facts"))
