"""Images that training changes: mixed on the device, trained by two labels, the same on any number of ranks."""

from dataclasses import replace

import numpy as np
import pytest

from ringtrain.config.record import TrainConfig, make_config
from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.data.batches.mixing import Erasing, Mix, Mixing
from ringtrain.data.batches.sampler import EvenParts, Sampler
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.split import ArraySplit
from ringtrain.errors import ConfigError
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.losses import SoftmaxCrossEntropy
from ringtrain.nn.spec import InputSpec, load_model
from ringtrain.ops.catalogue import make_ops
from ringtrain.ops.reference.loss import softmax_cross_entropy
from ringtrain.train.assembly.images import resize_of, transform_of, viewed
from ringtrain.train.assembly.recipe import augment_of
from ringtrain.train.step.input import DeviceInput
from ringtrain.train.step.passes import MicroBatch, ModelPasses
from tests.fakes.fake_gpu import FakeGpuOps
from tests.says import says

SPEC = InputSpec((8, 8, 1), "channel", "channel", pad=2, flip=True)


@pytest.fixture(scope="module")
def digits():
    return open_dataset("digits")


def batch_of(digits, **how):
    augment = augment_of(TrainConfig().data, replace(load_model("digits"), input=SPEC))
    changes = Changes(augment=augment, **how)
    gather = Gather(digits.train, Sampler(digits.train.count, 12), EvenParts(), changes, 3)
    return gather.fill(gather.slot(), 0, 0)


def loaded(ops, digits, batch, start=0, stop=12):
    feed = DeviceInput(ops, SPEC, digits)
    space = Workspace(ops)
    x, labels, _ = feed.load(space, batch, start, stop)
    partners = feed.partner_labels(space, batch, start, stop)
    return ops.to_host(x), ops.to_host(labels), None if partners is None else ops.to_host(partners)


DEVICES = {"cpu": lambda: make_ops("cpu"), "reference": lambda: make_ops("reference"), "cuda": lambda: FakeGpuOps()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mix", [Mix(0.3, None), Mix(0.75, (2, 0, 2, 8))])
def test_a_mixed_batch_is_each_example_and_its_partner(digits, device, mix):
    batch = replace(batch_of(digits, mixing=Mixing(1.0), erasing=Erasing(0.7)), mix=mix)
    plain = make_ops("reference")
    first, labels, _ = loaded(plain, digits, replace(batch, mix=None, partner=None))
    other, others, _ = loaded(plain, digits, batch.partner)
    wanted = mix.share * first + (1 - mix.share) * other
    if mix.box is not None:
        wanted = first.copy()
        wanted[:, 2:4] = other[:, 2:4]
    for cut in (slice(0, 12), slice(5, 9)):
        x, cut_labels, partners = loaded(DEVICES[device](), digits, batch, cut.start, cut.stop)
        assert np.allclose(x, wanted[cut], atol=1e-5)
        assert (cut_labels == labels[cut]).all() and (partners == others[cut]).all()


def test_erased_boxes_are_the_mean(digits):
    batch = batch_of(digits, erasing=Erasing(1.0))
    whole = batch_of(digits)
    x, _, partners = loaded(make_ops("cpu"), digits, batch)
    unchanged, *_ = loaded(make_ops("cpu"), digits, whole)
    assert partners is None and (batch.erase[:, 2] > 0).sum() > 6
    for row, (top, left, height, width) in enumerate(batch.erase):
        erased = np.zeros((8, 8, 1), bool)
        erased[top : top + height, left : left + width] = True
        assert (x[row] == np.where(erased, 0, unchanged[row])).all()


@pytest.mark.parametrize("share", [0.8, 0.3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_both_labels_by_their_shares(share, smoothing):
    random = np.random.default_rng(0)
    logits = random.standard_normal((6, 5))
    first, others = np.array([0, 1, -1, 3, 4, 2], np.int32), np.array([1, 1, 2, -1, 0, 2], np.int32)
    ops = make_ops("cpu", "float64")
    passes = ModelPasses(None, None, None, SoftmaxCrossEntropy(smoothing), Pass(ops, Workspace(ops)), 0, output=(5,))
    passes.denominator = 5.0
    sums = np.array([1.0, 2.0, 3.0])
    passes.micro_batch = MicroBatch(logits, first, sums, share, others)
    gradient = passes.loss_gradient(logits, first)
    each = []
    for labels in (first, others):
        dx, totals = np.empty((6, 5)), np.zeros(3)
        softmax_cross_entropy(logits, labels, dx, totals, 1 / 5, smoothing, -1)
        each.append((dx, totals))
    (dx, totals), (other_dx, other_totals) = each
    assert np.allclose(gradient, share * dx + (1 - share) * other_dx)
    correct = totals[1] if share >= 0.5 else other_totals[1]
    assert np.allclose(sums, [1 + share * totals[0] + (1 - share) * other_totals[0], 2 + correct, 3 + totals[2]])


NO_SIZES = ("", "8x", "8x8x8", "0", "-4", "x", "1e3", "99999")
NO_SCALES = ("", "1", "0:1", "1:.5", "0.1:2", "nan:1")
NO_JITTER = ("", "1,1,1", "1,1,1,.6", "-1,0,0,0", "inf,0,0,0")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        *(({"resize": value}, says("--resize", f"{value!r}")) for value in NO_SIZES),
        *(({"random_resized_crop": value}, says("--random-resized-crop", f"{value!r}")) for value in NO_SCALES),
        *(({"colour_jitter": value}, says("--colour-jitter", f"{value!r}")) for value in NO_JITTER),
        ({"colour_jitter": "1,1,1,0"}, says("--colour-jitter", "'digits'", "8x8x1")),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(alone, digits, flags, text):
    config = make_config(**flags)
    model = replace(load_model("digits"), input=SPEC)
    with pytest.raises(ConfigError, match=text) as refused:
        viewed(digits, config, model, alone)
    assert refused.value.exit_code == 2


def test_trivial_augment_is_for_bytes(alone, digits):
    floats = ArraySplit(np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32), "0" * 64)
    model, config = replace(load_model("digits"), input=SPEC), make_config(trivial_augment=True)
    assert viewed(digits, config, model, alone).train.count == digits.train.count
    with pytest.raises(ConfigError, match=says("--trivial-augment", "float32")):
        viewed(replace(digits, train=floats, test=None), config, model, alone)


def test_a_mean_image_is_of_one_size(alone, digits):
    small = replace(load_model("digits"), input=replace(SPEC, shape=(6, 6, 1), mean="image"))
    config = make_config(random_resized_crop="0.5:1")
    with pytest.raises(ConfigError, match=says("--resize", "'digits'")):
        viewed(digits, config, small, alone)
    resized = config.changed(resize="6")
    data = viewed(digits, resized, small, alone)
    assert data.mean_image.shape == data.train.shape == data.test.shape == (6, 6, 1)
    assert resize_of(resized.data) == 6 and transform_of(resized.data, small).crop.height == 6
