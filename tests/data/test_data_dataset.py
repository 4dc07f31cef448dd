"""Files of data sets: written whole, read back as they were, held once a node, and every kind of bad one
refused."""

import dataclasses
import hashlib
import os
import re
import threading

import h5py
import numpy as np
import pytest
from data_makers import content, part, write_packed

from ringtrain.data.batches.synthetic import synthetic
from ringtrain.data.content import Content, memory_part
from ringtrain.data.file import contents
from ringtrain.data.file.check import check_file
from ringtrain.data.file.contents import HEADER_BYTES
from ringtrain.data.file.dataset import NodeMemory, open_dataset
from ringtrain.data.file.grammar import DIGITS
from ringtrain.data.file.statistics import pixel_statistics
from ringtrain.data.file.write import write_dataset
from ringtrain.data.stored.base import MemoryArray
from ringtrain.errors import DataError, nearest
from tests.loopback.world import LoopbackWorld
from tests.says import says


# ── good files ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("test", "write"), [(5, write_dataset), (0, write_dataset), (5, write_packed)])
def test_what_is_written_is_what_is_opened(tmp_path, test, write):
    written, path = content(test=test), tmp_path / "a.h5"
    write(path, written)
    opened = open_dataset(path)
    for (name, wrote), (opened_name, split) in zip(written.parts(), opened.splits(), strict=True):
        assert name == opened_name
        assert (split.images == wrote.inputs.array).all() and split.images.dtype == np.uint8
        assert (split.labels == wrote.labels.array).all() and split.labels.dtype == np.int32
        assert split.count == wrote.count and split.shape == (4, 5, 3)
        assert not split.images.flags.writeable and not split.labels.flags.writeable
    assert (opened.name, opened.source) == ("tiny", "made up")
    assert opened.classes == ("class 0", "class 1", "class 2")
    assert opened.location == "private"
    assert check_file(path) == []


def test_statistics_and_checksum_are_of_the_training_images(tiny):
    opened = open_dataset(tiny)
    images = opened.train.images.astype(np.float64)
    np.testing.assert_allclose(opened.mean, images.mean((0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(opened.std, images.std((0, 1, 2)), rtol=1e-13)
    np.testing.assert_array_equal(opened.mean_image, images.mean(0).astype(np.float32))
    values = opened.train.images.tobytes() + opened.train.labels.astype("<i4").tobytes()
    assert opened.train.checksum == hashlib.sha256(b"uint8 12 4 5 3\n" + values).hexdigest()
    # Many white images do not overflow.
    white = pixel_statistics(MemoryArray(np.full((70_000, 1, 1, 1), 255, np.uint8)))
    assert white.mean.tolist() == [255.0] and white.std.tolist() == [0.0] and white.mean_image.item() == 255.0


def test_a_set_is_named_by_the_checksums_of_all_its_examples_and_has_many_classes_and_labels_of_none(tmp_path):
    sums = set()
    for number, each in enumerate([content(), content(train=11), content(test=4), content(test=0)]):
        write_dataset(tmp_path / f"{number}.h5", each)
        sums.add(open_dataset(tmp_path / f"{number}.h5").checksum)
    assert len(sums) == 4
    names = tuple(f"class number {n:05}" for n in range(21_000))
    labels = np.array([-1, 20_999, 0], np.int32)
    write_dataset(tmp_path / "a.h5", Content("many", memory_part(part(3).inputs.array, labels), None, names, "made up"))
    opened = open_dataset(tmp_path / "a.h5")
    assert opened.classes == names and opened.train.labels.tolist() == [-1, 20_999, 0]


def test_digits_are_those_that_were_shipped():
    digits = open_dataset("digits")
    assert (digits.train.count, digits.test.count, digits.train.shape) == (1437, 360, (8, 8, 1))
    assert digits.train.images.max() == 16 and digits.classes == tuple("0123456789")
    assert digits.train.checksum == "271b1757f5f04922eb9be9c5958c97dfac36412fb80943a9f4bc4b0a3a1c7e0c"
    assert digits.test.checksum == "143787d8e6c1eaa8cbb3fc9ae156862a03cebb9a92c75af4cd1fb463de046c87"
    assert "doi:10.24432/C50P49" in digits.source
    assert DIGITS.stat().st_size < 150_000
    assert check_file("digits") == []
    together = np.concatenate([digits.train.images, digits.test.images]).reshape(1797, 64)
    assert len(np.unique(together, axis=0)) == 1797


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_an_existing_file_is_replaced_by_force_alone_and_stays_where_a_write_fails(tiny):
    def full(what, done, total):
        if what == "writing":
            raise OSError(28, "No space left on device")

    for how, words in (({}, ["--force"]), ({"force": True, "progress": full}, ["No space left"])):
        with pytest.raises(DataError, match=says("tiny.h5", *words)):
            write_dataset(tiny, content(train=7), **how)
        assert os.listdir(tiny.parent) == ["tiny.h5"] and open_dataset(tiny).train.count == 12
    write_dataset(tiny, content(train=7), force=True)
    assert open_dataset(tiny).train.count == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ()}, says("train", 0)),
        ({"classes": ("one",)}, says("train")),
        ({"test": part(5, (4, 4, 3))}, says("(4, 4, 3)", "(4, 5, 3)")),
    ],
)
def test_what_could_not_be_opened_is_not_written(tiny, change, message):
    whole = tiny.read_bytes()
    with pytest.raises(DataError, match=says("tiny.h5") + message):
        write_dataset(tiny, dataclasses.replace(content(), **change), force=True)
    assert os.listdir(tiny.parent) == ["tiny.h5"] and tiny.read_bytes() == whole


def test_a_target_that_cannot_be_is_refused(tmp_path, monkeypatch):
    for path, folder in ((tmp_path, tmp_path), (tmp_path / "nowhere" / "a.h5", tmp_path / "nowhere")):
        with pytest.raises(DataError, match=says(folder)):
            write_dataset(path, content())
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(DataError, match=says(tmp_path)):
        write_dataset(tmp_path / "a.h5", content())


# ── bad files ───────────────────────────────────────────────────────────────────────────────────────────────
def replace(group, key, values):
    del group[key]
    group[key] = values


def images(**how):
    """The training images made anew, by other means."""
    how = {"shape": (12, 4, 5, 3), "dtype": "u1", **how}
    return lambda file: (file["train"].pop("images"), file["train"].create_dataset("images", **how))


def foreign_filter(file):
    """Filter 32015, of which the library would look for code; optional, so that writing goes without."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((12, 4, 5, 3))
    plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1, 2))
    del file["train/images"]
    space = h5py.h5s.create_simple((12, 4, 5, 3))
    h5py.h5d.create(file["train"].id, b"images", h5py.h5t.STD_U8LE, space, plan)


def train(key, values):
    return lambda file: replace(file["train"], key, values)


def through_a_soft_link(file):
    file["out"] = h5py.ExternalLink("pipe", "/")
    replace(file, "test", h5py.SoftLink("/out/test"))


def attribute(name, value, **how):
    return lambda file: file.attrs.create(name, value, **how)


def virtual(file):
    del file["train/images"]
    layout = h5py.VirtualLayout((12, 4, 5, 3), np.uint8)
    layout[...] = h5py.VirtualSource("other.h5", "x", (12, 4, 5, 3))
    file["train"].create_virtual_dataset("images", layout)


def set_label(index, value):
    return lambda file: file["train/labels"].__setitem__(index, value)


EMPTY = ("images", (0, 4, 5, 3)), ("labels", 0)
OBJECTS = (h5py.string_dtype(), h5py.ref_dtype, h5py.regionref_dtype, h5py.vlen_dtype("u1"))
BAD = {
    "format": (lambda f: f.attrs.update(format="other"), says("'other'", "'ringtrain-dataset'")),
    "no format": (lambda f: f.attrs.pop("format"), says("None")),
    "version": (lambda f: f.attrs.update(version=2), says("2", 1)),
    "classes": (lambda f: f.attrs.update(classes=[1, 2]), says("class", "checksum")),
    "no train": (lambda f: f.pop("train"), says("train/images", "train")),
    "no images": (lambda f: f["train"].pop("images"), says("train/images", "known: labels")),
    "empty test": (lambda f: (f.pop("test"), f.create_group("test")), says("test/images", "group", "empty")),
    "float images": (train("images", np.zeros((12, 4, 5, 3), "f4")), says("uint8", "float32")),
    "flat images": (train("images", np.zeros((12, 60), "u1")), says("(60,)")),
    "no width": (train("images", np.zeros((12, 4, 0, 3), "u1")), says("(12, 4, 0, 3)")),
    "int64 labels": (train("labels", np.zeros(12, "i8")), says("train", "checksum")),
    "big-endian": (train("labels", np.zeros(12, ">i4")), says("train", "checksum")),
    "no values": (train("labels", h5py.Empty("i4")), "train/labels has no values"),
    "labels few": (train("labels", np.zeros(11, "i4")), says("train/labels", "(11,)", 12)),
    "zero": (lambda f: [train(key, np.zeros(shape, "i4"))(f) for key, shape in EMPTY], says("train")),
    "test shape": (
        lambda f: replace(f["test"], "images", np.zeros((5, 4, 4, 3), "u1")),
        says("(4, 4, 3)", "(4, 5, 3)"),
    ),
    "checksum of facts": (lambda f: f.attrs.update(checksum="ab"), says("the file", "'ab'")),
    "other checksum of facts": (lambda f: f.attrs.update(checksum="ab" * 32), says("abababababab")),
    "checksum gone": (lambda f: f["test"].attrs.pop("checksum"), says("test")),
    "mean": (lambda f: f.attrs.update(mean=[1.0, 2.0]), says("mean", 3)),
    "std": (lambda f: f.attrs.update(std=[1.0, 2.0, np.nan]), says("std", 3)),
    "mean image": (lambda f: f.pop("mean_image"), says("known: test, train")),
    "mean image shape": (lambda f: replace(f, "mean_image", np.zeros((5, 4, 3), "f4")), says("(5, 4, 3)", "(4, 5, 3)")),
    "mean image of texts": (lambda f: replace(f, "mean_image", np.full((4, 5, 3), b"x", object)), says("object")),
    "external": (images(external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)]), says("keeps", "into")),
    "virtual": (virtual, says("keeps", "into")),
    "linked": (lambda f: replace(f, "train", h5py.ExternalLink("pipe", "/train")), says("train")),
    "label high": (set_label([3, 5], 3), says(2, 12, "train", "3", "0", 3)),
    "label low": (set_label(4, -2), says(1, 12, "train", "-2", "4", "2", 3, 2)),
    "label other": (set_label(0, -1), says("train")),
    "byte": (lambda f: f["test/images"].write_direct(np.zeros((5, 4, 5, 3), "u1")), says("test")),
    "a soft link to an external one": (through_a_soft_link, says("test/images", "out")),
    "a filter of others": (foreign_filter, "images " + says(32015, "filter", "gzip")),
    "a bomb of zeros": (
        images(shape=(1 << 20, 4, 5, 3), compression="gzip", chunks=(512, 4, 5, 3)),
        says("62,914,560"),
    ),
    "a shape of nothing": (images(shape=(1 << 40, 4, 5, 3), chunks=(1, 4, 5, 3)), says("0")),
    "chunks that take more memory than all of it": (
        images(data=np.ones((12, 4, 5, 3)), chunks=(300_000, 4, 5, 3), maxshape=(None, 4, 5, 3), compression="gzip"),
        says("18,000,000"),
    ),
    "a product that wraps around": (images(shape=(1 << 31, 1 << 31, 4, 1), chunks=(1, 1, 1, 1)), "claims"),
    **{f"objects {dtype}": (images(dtype=dtype), says("train/images", "object")) for dtype in OBJECTS},
    "compounds": (images(dtype=[("a", "u1"), ("b", "f4")]), says("train/images", "type")),
    "arrays in arrays": (images(dtype="(2,)u1"), says("train/images")),
    "a class in no encoding": (attribute("classes", [b"\xff"], dtype=h5py.string_dtype()), says("class", "checksum")),
    "a compound statistic": (attribute("mean", np.zeros(3, [("a", "f8")])), says("mean", "object")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_and_check_finds_it(tiny, case):
    os.mkfifo(tiny.parent / "pipe")  # whoever opened it would wait for ever
    change, message = BAD[case]
    with h5py.File(tiny, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(tiny)
    assert str(tiny) in str(caught.value) and caught.value.exit_code == 2
    assert any(problem in str(caught.value) for problem in check_file(tiny))


def test_check_finds_every_problem_of_the_examples(tiny):
    with h5py.File(tiny, "r+") as file:
        file["train/labels"][3] = 99
        file["test/images"][0, 0, 0, 0] ^= 1
    problems = check_file(tiny)
    wanted = says(1, 12, "train"), says("train", "checksum"), says("test", "checksum")
    assert len(problems) == 3 and all(re.match(text, p) for p, text in zip(problems, wanted, strict=True))


def test_a_file_cut_anywhere_is_refused(tiny):
    whole = tiny.read_bytes()
    for size in [0, 7, 8, 100, *range(500, len(whole), 777), len(whole) - 1]:
        tiny.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"tiny\.h5.*(truncated|data make|could not be opened)"):
            open_dataset(tiny)


def test_damage_inside_compressed_images_is_named(tmp_path):
    path = tmp_path / "a.h5"
    write_packed(path, content(train=600))
    with h5py.File(path) as file:
        where = file["train/images"].id.get_chunk_info(1).byte_offset
    whole = bytearray(path.read_bytes())
    whole[where : where + 40] = b"\xff" * 40
    path.write_bytes(whole)
    with pytest.raises(DataError, match=says("a.h5")):
        open_dataset(path)
    assert any(re.search(says("train"), problem) for problem in check_file(path))


def test_no_file_another_file_and_a_folder(tmp_path, tiny):
    (tmp_path / "text.h5").write_text("hello, " * 100)
    for name, *words in (
        (tmp_path / "tini.h5", nearest("tini.h5", ["text.h5", "tiny.h5", "digits"])),
        ("digit", nearest("digit", ["digits"])),
        (tmp_path / "text.h5",),
        (tmp_path,),
    ):
        with pytest.raises(DataError, match=says(name, *words)):
            open_dataset(name)
        assert says(name, *words).matches(check_file(name))


# ── once a node ─────────────────────────────────────────────────────────────────────────────────────────────
def open_on(size, path, windows=True):
    """Open on each rank of a node; returns the data sets, or the texts of the errors."""

    def opened(transport):
        node = NodeMemory(transport.node_window, transport.node_barrier, transport.rank == 0)
        try:
            return open_dataset(path, node)
        except DataError as error:
            return str(error)

    return LoopbackWorld(size, shares=windows).run(opened)


def test_a_node_holds_the_set_once_and_one_rank_reads_it(tiny, monkeypatch):
    readers, read_inputs = [], contents.read_inputs
    monkeypatch.setattr(
        contents, "read_inputs", lambda *args: (readers.append(threading.current_thread()), read_inputs(*args))
    )
    results = open_on(3, tiny)
    assert [r.location for r in results] == ["node window"] * 3
    assert len({r.train.images.ctypes.data for r in results}) == 1
    assert len(set(readers)) == 1 and len(readers) == 2
    alone = open_dataset(tiny)
    for result in results:
        assert (result.train.images == alone.train.images).all() and (result.test.labels == alone.test.labels).all()
        assert result.checksum == alone.checksum and not result.train.images.flags.writeable
    one, other = open_on(2, tiny, windows=False)
    assert one.location == other.location == "private"
    assert one.train.images.ctypes.data != other.train.images.ctypes.data


def test_what_the_owner_finds_wrong_is_raised_by_all_and_a_long_complaint_is_cut(tiny, monkeypatch):
    with h5py.File(tiny, "r+") as file:
        file["train/labels"][3] = 99
    errors = open_on(3, tiny)
    assert errors == [says(1, 12, "train")] * 3 and len(set(errors)) == 1

    def fail(*args):
        raise DataError("…" * HEADER_BYTES)

    with h5py.File(tiny, "r+") as file:
        file["train/labels"][3] = 0
    monkeypatch.setattr(contents, "read_inputs", fail)
    _, error = open_on(2, tiny)
    assert error.startswith("………") and len(error.encode()) <= HEADER_BYTES


# ── synthetic ───────────────────────────────────────────────────────────────────────────────────────────────
def test_synthetic_data_are_the_same_for_a_seed_and_look_random():
    a, b, c = (synthetic((5, 3, 3), 7, 1000, seed) for seed in (1, 1, 2))
    assert a.checksum == b.checksum != c.checksum
    assert a.train.images.shape == (1000, 5, 3, 3) and a.train.labels.dtype == np.int32
    assert set(a.train.labels) == set(range(7)) and len(a.classes) == 7 and a.test is None
    assert abs(a.mean - 127.5).max() < 3 and abs(a.std - 73.9).max() < 3
    assert a.train.checksum == synthetic((5, 3, 3), 7, 1000, 1).train.checksum


def test_synthetic_labels_have_the_shape_of_a_loss_and_data_of_nothing_are_refused():
    dense, values = (synthetic((6, 2), classes, 500, 3, (6,), most=9).train for classes in (4, None))
    assert dense.labels.shape == values.labels.shape == (500, 6) and set(dense.labels.ravel()) == set(range(4))
    assert values.label_dtype == np.float32 and values.labels.min() >= 0 and values.labels.max() < 1
    assert abs(values.labels.mean() - 0.5) < 0.02 and set(values.images.ravel()) == set(range(10))
    assert synthetic((6, 2), None, 500, 3, (6,)).classes == ()
    for arguments, *words in (
        (((2, 2, 1), 2_000_000_000, 4, 0), "2,000,000,000", "65,536"),
        (((8, 8, 1), 10, 1 << 62, 0), "--batch", "4611686018427387904x8x8x1"),
    ):
        with pytest.raises(DataError, match=says(*words)):
            synthetic(*arguments)
