"""What training does to images: drawn by key, the same however a batch is divided."""

import threading

import numpy as np
import pytest
from image_makers import pixels

from ringtrain.data.batches import keys
from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.draws import Draws
from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.data.batches.mixing import Erasing, Mix, Mixing, partners
from ringtrain.data.batches.pictures import StoredPictures, View
from ringtrain.data.batches.sampler import EvenParts, Sampler
from ringtrain.data.batches.transforms import ColourJitter, RandomResizedCrop, Transform, TrivialAugment
from ringtrain.data.images import pillow, resize
from ringtrain.data.split import ArraySplit

COUNT, BATCH = 22, 8
ALL = {
    "augment": Augment(0, True, 12, 16),
    "transform": Transform(RandomResizedCrop(12, 16), (TrivialAugment(), ColourJitter(0.4, 0.4, 0.4, 0.1))),
    "mixing": Mixing(0.3, 1.0),
    "erasing": Erasing(0.5),
}
ARRAYS = ("examples", "images", "labels", "top", "left", "flip", "erase")


def split(threads=1, dtype=np.uint8, channels=3):
    images = np.stack([pixels(20, 24, seed) for seed in range(COUNT)])[..., :channels].astype(dtype)
    labels = (np.arange(COUNT) % 5 - 1).astype(np.int32)
    return StoredPictures(ArraySplit(images, labels, "0" * 64), None, threads)


def gathered(iteration, parts, source=None, seed=7, **how):
    """Each part's batch of an iteration, and its partner's, one after another."""
    rows = {"": [], "partner.": []}
    for part in range(parts):
        gather = Gather(source or split(), Sampler(COUNT, BATCH, 3), EvenParts(parts), Changes(**{**ALL, **how}), seed)
        batch = gather.fill(gather.slot(), iteration, part)
        rows[""].append(batch)
        if batch.partner is not None:
            rows["partner."].append(batch.partner)
        gather.close()
    mixes = {(batch.mix, batch.valid_total) for batch in rows[""]}
    assert len(mixes) == 1
    arrays = {
        f"{prefix}{name}": np.concatenate([getattr(batch, name) for batch in batches])
        for prefix, batches in rows.items()
        if batches
        for name in ARRAYS
    }
    return arrays, mixes.pop()


@pytest.mark.parametrize("iteration", [0, 2, 4])  # the second is a tail; the last is of the second epoch
def test_batches_are_the_same_divided_among_three_ranks_and_in_threads(iteration):
    one, mix = gathered(iteration, 1)
    for source in (split(), split(threads=3)):
        three, same = gathered(iteration, 3, source)
        assert same == mix
        assert all((one[name] == three[name]).all() for name in one)
    assert one["images"].shape[1:] == (12, 16, 3)
    again, _ = gathered(iteration, 1, seed=8)
    assert (one["images"] != again["images"]).any()


class ThreadsTogether(StoredPictures):
    """Each image waits until four threads read one."""

    barrier = threading.Barrier(4)

    def picture(self, example):
        self.barrier.wait(60)
        return super().picture(example)


def test_each_thread_has_a_part_of_a_small_batch():
    stored = split(threads=4)
    together = ThreadsTogether(stored.source, stored.view, stored.threads)
    arrays, _ = gathered(0, 1, together, mixing=None)
    alone, _ = gathered(0, 1, mixing=None)
    assert all((arrays[name] == alone[name]).all() for name in arrays)


def test_partners_are_other_examples_of_the_batch_each_once():
    arrays, _ = gathered(1, 2)
    assert sorted(arrays["partner.examples"]) == sorted(arrays["examples"])
    assert (arrays["partner.examples"] != arrays["examples"]).all()
    row_of_example = {example: row for row, example in enumerate(arrays["examples"].tolist())}
    rows = [row_of_example[example] for example in arrays["partner.examples"].tolist()]
    for name in ARRAYS:
        assert (arrays[f"partner.{name}"] == arrays[name][rows]).all()
    assert (partners(1, 0, 0) == [0]).all()
    assert (partners(6, 1, 2) == [2, 4, 5, 0, 3, 1]).all()


def test_draws_are_these_numbers():
    """They decide the images of every run ever logged."""
    draws = Draws(keys.make_key(keys.TRANSFORM, 1, 2, 3))
    assert [draws.uniform() for _ in range(2)] == pytest.approx([0.32282605940748416, 0.08674371134201347], abs=0)
    assert draws.order(5) == [4, 3, 2, 0, 1]
    betas = [draws.beta(alpha) for alpha in (0.2, 1.0, 5.0)]
    assert betas == [0.9984340667724609, 0.46684741973876953, 0.25387096405029297]
    assert RandomResizedCrop(4, 4).box(50, 70, Draws(9)) == (0, 19, 50, 45)
    whole = RandomResizedCrop(8, 8, (1.0, 1.0))  # a box that fits in no try is the centre
    assert (whole.box(10, 100, Draws(0)), whole.box(100, 10, Draws(0))) == ((0, 43, 10, 13), (43, 0, 13, 10))
    mixes = [Mixing(0.4, 1.0).draw(32, 32, 5, iteration) for iteration in range(2)]
    assert mixes == [Mix(0.9984312057495117, None), Mix(0.9732341766357422, None)]
    boxes = np.empty((3, 4), np.int32)
    Erasing(0.5).draw(32, 24, 0, 0, np.arange(3), boxes)
    assert boxes.tolist() == [[5, 2, 8, 21], [12, 1, 9, 6], [0, 0, 0, 0]]


def test_draws_have_their_distributions():
    draws = Draws(0)
    for alpha in (0.1, 0.5, 1.0, 4.0):
        shares = np.array([draws.beta(alpha) for _ in range(4000)])
        assert ((shares >= 0) & (shares <= 1)).all()
        assert shares.mean() == pytest.approx(0.5, abs=0.03)
        assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
    crop = RandomResizedCrop(8, 8, (0.25, 0.5))
    boxes = np.array([crop.box(100, 100, draws) for _ in range(1500)])
    top, left, height, width = boxes.T
    assert min(top.min(), left.min()) >= 0 and max((top + height).max(), (left + width).max()) <= 100
    area, ratio = height * width / 1e4, width / height
    assert area.min() > 0.24 and area.max() < 0.51 and area.mean() == pytest.approx(0.375, abs=0.01)
    assert ratio.min() > 0.72 and ratio.max() < 1.37 and np.log(ratio).mean() == pytest.approx(0, abs=0.02)
    erased = np.empty((3000, 4), np.int32)
    Erasing(0.3).draw(64, 64, 1, 1, np.arange(3000), erased)
    assert (erased[:, 2] > 0).mean() == pytest.approx(0.3, abs=0.03)
    shares = [Mixing(cutmix=1.0).draw(64, 64, 0, iteration) for iteration in range(500)]
    for mix in shares:
        top, left, height, width = mix.box
        assert mix.share == 1 - height * width / 64**2 and top + height <= 64 and left + width <= 64
    kinds = [Mixing(1.0, 1.0).draw(8, 8, 0, iteration).box is None for iteration in range(1000)]
    assert np.mean(kinds) == pytest.approx(0.5, abs=0.05)


def test_jitter_of_nothing_changes_nothing_and_of_one_kind_that_alone():
    image = pixels(10, 12)
    assert (ColourJitter(0, 0, 0, 0).of(image, Draws(0)) == image).all()
    grey = ColourJitter(0, 0, 1, 0).of(np.full((4, 4, 3), 90, np.uint8), Draws(0))
    assert (grey == 90).all()  # saturation leaves grey alone
    brighter = ColourJitter(0.5, 0, 0, 0).of(image, Draws(1)).astype(float)
    draws = Draws(1)
    factor = draws.uniform(0.5, 1.5)
    assert np.abs(brighter - np.clip(image * factor, 0, 255)).max() <= 1
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    turned = ColourJitter(0, 0, 0, 0.5).of(red, Draws(4))
    assert (turned.max(axis=2) == 255).all() and (turned != red).any()


def sheared(image, step):
    """Each row is read from further right by 0.033 · step of its height's middle; nothing lies outside."""
    y, x = np.indices(image.shape[:2])
    at = np.floor(x + 0.5 + 0.033 * step * (y + 0.5)).astype(int)
    return np.where((at >= 0) & (at < image.shape[1]), image[y, at.clip(0, image.shape[1] - 1)], 0)


OPERATIONS = [
    (0, 30, 1, lambda image: image),
    (1, 20, 1, lambda image: sheared(image, 20)),
    (1, 7, -1, lambda image: sheared(image, -7)),
    (2, 20, 1, lambda image: sheared(image.T, 20).T),
    (3, 10, 1, lambda image: np.pad(image, ((0, 0), (10, 0)))[:, :24]),
    (4, 4, -1, lambda image: np.pad(image, ((0, 4), (0, 0)))[4:]),
    (5, 20, 1, lambda image: np.pad(np.rot90(image[:, 2:22]), ((0, 0), (2, 2)))),  # 20 rows stay
    (6, 10, -1, lambda image: np.trunc(image * 0.67)),
    (8, 10, 1, lambda image: np.clip(image.mean().round() + 1.33 * (image - image.mean().round()), 0, 255)),
    (10, 30, 1, lambda image: image & 0xC0),
    (11, 10, 1, lambda image: np.where(image < 170, image, 255 - image)),
    (12, 3, 1, lambda image: np.trunc((image - image.min()) * (255 / np.ptp(image)) + 1e-9)),
]


@pytest.mark.parametrize(("number", "step", "sign", "expected"), OPERATIONS)
def test_trivial_augment_s_operations_do_what_they_say(number, step, sign, expected):
    image = pixels(20, 24)[..., 0]
    changed = np.asarray(TrivialAugment.operations(pillow().fromarray(image), step, sign)[number]())
    assert np.abs(changed - expected(image).astype(float)).max() <= (number in (6, 8, 12))


def test_trivial_augment_takes_every_operation_and_grey_images():
    augment, grey = TrivialAugment(), pixels(20, 24)[..., :1]
    assert all(augment.of(image, Draws(5)).shape == image.shape for image in (grey, pixels(20, 24)))
    assert {Draws(key).below(14) for key in range(200)} == set(range(14))


@pytest.mark.parametrize(("dtype", "channels"), [(np.float32, 2), (np.float64, 1), (np.uint8, 2)])
def test_arrays_of_any_channels_and_types_are_cropped(dtype, channels):
    source = split(dtype=dtype, channels=channels)
    crop = Transform(RandomResizedCrop(12, 16))
    gather = Gather(source, Sampler(COUNT, BATCH, 3), EvenParts(), Changes(crop))
    batch = gather.fill(gather.slot(), 0, 0)
    assert (batch.images.shape, batch.images.dtype) == ((BATCH, 12, 16, channels), dtype)
    for example, image in zip(batch.examples.tolist(), batch.images, strict=True):
        box = crop.crop.box(20, 24, Draws(keys.make_key(keys.TRANSFORM, 0, 0, example)))
        assert (image == resize(source.source.images[example], 12, 16, box)).all()


def test_resized_arrays_are_a_split_of_that_shape():
    stored = split()
    viewed = StoredPictures(stored.source, View((8, 8), (10, 14)), 1)
    images, labels = np.empty((2, *viewed.shape), np.uint8), np.empty(2, np.int32)
    viewed.read(np.array([3, 5]), images, labels)
    assert viewed.shape == (10, 14, 3)
    assert (labels == stored.labels[[3, 5]]).all()
    assert (images[1] == View((8, 8), (10, 14)).of(stored.source.images[5])).all()
