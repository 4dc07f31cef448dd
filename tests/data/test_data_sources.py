"""Each format read as it is, and each way of being wrong told."""

import dataclasses
import gzip
import os
import pickle
import sys
import tarfile

import numpy as np
import pytest
import source_makers as makers
from data_makers import content

from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.readers import members, sources
from ringtrain.data.readers.make import make_dataset, split_test
from ringtrain.data.readers.pickles import load_plain
from ringtrain.data.split import ArraySplit
from ringtrain.errors import DataError, nearest
from tests.says import says


def in_memory(content):
    """The content with its parts read, as writing a file reads them."""
    read = {name: ArraySplit(np.asarray(part.inputs), np.asarray(part.labels), "") for name, part in content.parts()}
    return dataclasses.replace(content, **read)


def read_source(path, size=None):
    return in_memory(sources.read_source(path, size))


X, Y = np.arange(48, dtype=np.uint8).reshape(4, 3, 4), np.array([0, 2, 1, 2])


def refused(message, source, **options):
    with pytest.raises(DataError, match=message) as caught:
        read_source(source, **options)
    return str(caught.value)


# ── IDX ─────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("gz", [False, True])
def test_idx_folder(tmp_path, gz):
    read = read_source(makers.idx_folder(tmp_path / "some", gz))
    assert read.train.images.shape == (6, 3, 2, 1) and read.test.images.shape == (4, 3, 2, 1)
    assert read.train.images[:, 1, 1, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert read.test.labels.tolist() == [0, 1, 2, 0] and read.test.labels.dtype == np.int32
    assert read.classes == ("0", "1", "2") and read.name == "some"


def test_idx_files_in_folders_of_their_own_names(tmp_path):
    for file in list(makers.idx_folder(tmp_path / "some").iterdir()):
        inside = file.rename(tmp_path / "moving")
        file.mkdir()
        inside.rename(file / file.name.replace("-idx", ".idx"))
    read = read_source(tmp_path / "some")
    assert (read.train.count, read.test.labels.tolist()) == (6, [0, 1, 2, 0])


def test_idx_by_prefix_by_file_of_several_sets_and_with_a_missing_half(tmp_path):
    folder = makers.idx_folder(tmp_path / "some", prefix="letters-")
    makers.idx_folder(folder, prefix="digits-", train=9)
    message = refused(says("IDX", "sets"), folder)
    assert message.endswith(f"{folder}/digits-, {folder}/letters-")
    by_prefix = read_source(folder / "letters-")
    assert (by_prefix.name, by_prefix.train.count, by_prefix.test.count) == ("letters", 6, 4)
    by_file = read_source(folder / "digits-train-images-idx3-ubyte")
    assert (by_file.train.count, by_file.test) == (9, None)
    folder = makers.idx_folder(tmp_path / "halves")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    refused(says("t10k-images-idx3-ubyte", "labels", "t10k"), folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(makers.idx(np.zeros(5, np.uint8)))
    refused(says("(5,)", 6), folder)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d[:-1], says("truncated", "6x3x2", 36, 35)),
        (lambda d: d + b"x", says("too long", "6x3x2", 36, "more")),
        (lambda d: gzip.compress(d + bytes(1 << 24)), says("too long", "6x3x2", 36, "more")),
        (lambda d: d[:9], says(9, "truncated", "header")),
        (lambda d: b"", says("(none)")),
        (lambda d: b"\0\0\x0d" + d[3:], says("00 00 0d 03", "images")),
        (lambda d: gzip.compress(d)[:-9], says("train-images-idx3-ubyte", "Compressed file ended")),
    ],
)
def test_damaged_idx(tmp_path, change, message):
    images = makers.idx_folder(tmp_path / "some") / "train-images-idx3-ubyte"
    images.write_bytes(change(images.read_bytes()))
    refused(message, tmp_path / "some")


# ── CIFAR ───────────────────────────────────────────────────────────────────────────────────────────────────
def check_cifar10(read):
    assert (read.train.images == makers.cifar_images(10)).all()
    assert (read.test.images == makers.cifar_images(3, 50)).all()
    assert read.train.labels.tolist() == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9] and read.test.labels.tolist() == [0, 1, 2]
    assert read.classes == tuple(makers.CLASSES_10) and read.name == "cifar-10"


@pytest.mark.parametrize("files", [makers.cifar10_python(), makers.cifar10_python(4)])
def test_cifar10_in_a_folder_an_outer_folder_and_archives(tmp_path, files):
    check_cifar10(read_source(makers.in_folder(tmp_path / "a", files)))
    makers.in_folder(tmp_path / "b" / "cifar-10-batches-py", files)
    check_cifar10(read_source(tmp_path / "b"))
    for suffix in ("tar", "tar.gz", "tar.xz"):
        check_cifar10(read_source(makers.in_archive(tmp_path / f"c.{suffix}", files)))
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c.tar", "c.tar.gz", "c.tar.xz"]


def test_cifar100_takes_the_fine_labels(tmp_path):
    files = makers.cifar100_python()
    for source in (makers.in_folder(tmp_path / "a", files), makers.in_archive(tmp_path / "a.tar.gz", files)):
        read = read_source(source)
        assert read.train.labels.tolist() == [99, 98, 97, 96] and read.test.labels.tolist() == [99, 98]
        assert (read.train.images == makers.cifar_images(4)).all()
        assert len(read.classes) == 100 and read.classes[0] == "fine 0" and read.name == "cifar-100"


GOOD = np.zeros((2, 3072), "u1")
WRONG_CIFAR = {
    "a missing batch": ("data_batch_4", None, says("data_batch_4")),
    "no data": ("data_batch_2", {"labels": [0, 1]}, says("data")),
    "a list": ("data_batch_2", [1, 2], says("data and no labels")),
    "narrow images": ("data_batch_2", {"data": GOOD[:, 1:], "labels": [0, 1]}, says("uint8 (2, 3071)", 3072)),
    "float images": ("data_batch_2", {"data": GOOD.astype("f4"), "labels": [0, 1]}, says("float32 (2, 3072)")),
    "images in a list": ("data_batch_2", {"data": [1, 2], "labels": [0, 1]}, says("list")),
    "few labels": ("data_batch_2", {"data": GOOD, "labels": [0]}, says("labels", "int64", "(1,)", 2)),
    "a high label": ("data_batch_2", {"data": GOOD, "labels": [0, 10]}, says("10", "3", 10)),
    "a low label": ("data_batch_2", {"data": GOOD, "labels": [0, -2]}, says(-2, 9, "label", "lie")),
    **{
        f"labels {labels}"[:30]: ("data_batch_2", {"data": GOOD, "labels": labels}, says("list", "integers"))
        for labels in ([[1], [2, 3]], [10**30, 1], ["a" * 100] * 2, [True, False])
    },
    "names of numbers": ("batches.meta", {"label_names": [1, 2]}, says("label_names")),
    "few names": ("batches.meta", {"label_names": ["a"]}, says("batches.meta", 1, "CIFAR-10", 10)),
}


@pytest.mark.parametrize("what", WRONG_CIFAR)
def test_cifar_that_is_wrong(tmp_path, what):
    name, value, message = WRONG_CIFAR[what]
    files = makers.cifar10_python() | {name: pickle.dumps(value)}
    if value is None:
        del files[name]
    assert str(tmp_path) in refused(message, makers.in_folder(tmp_path / "a", files))


def test_a_tuple_of_labels_is_as_good_as_a_list(tmp_path):
    files = makers.cifar10_python() | {"data_batch_2": pickle.dumps({"data": GOOD, "labels": (1, -1)})}
    assert read_source(makers.in_folder(tmp_path / "a", files)).train.labels.tolist()[2:4] == [1, -1]


def test_archives_that_are_truncated_of_something_else_of_too_much_or_with_a_name_twice(tmp_path, monkeypatch):
    for suffix in ("tar", "tar.gz", "tar.xz"):
        path = makers.in_archive(tmp_path / f"a.{suffix}", makers.cifar10_python())
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        refused(f"{path.name}.*(truncated|lacks|CIFAR)", path)
    refused(says("CIFAR-10"), makers.in_archive(tmp_path / "a.tar", {"readme": b"hello"}))
    path = makers.in_archive(tmp_path / "b.tar", makers.cifar10_python())
    with tarfile.open(path, "a") as archive:
        archive.addfile(tarfile.TarInfo("two/data_batch_1"))
    refused(says("b.tar", "data_batch_1"), path)
    monkeypatch.setattr(members, "LARGEST_BYTES", 1000)
    refused(says(1000, "reads", "most"), path)


# ── pickles ─────────────────────────────────────────────────────────────────────────────────────────────────
class Evil:
    """Would write a file if it were unpickled."""

    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


def evil_pickles(mark):
    yield pickle.dumps({"data": Evil(os.system, f"touch {mark}"), "labels": [1]})
    yield pickle.dumps(Evil(eval, f"open({str(mark)!r}, 'w')"))
    yield pickle.dumps(Evil(exec, f"open({str(mark)!r}, 'w')"))
    yield pickle.dumps(Evil(getattr, "text", "upper"))
    yield pickle.dumps(Evil(__import__, "os"))
    yield pickle.dumps(np.array([Evil(os.mkdir, str(mark))], object))
    # Protocol 0: by the opcodes that older pickles use; then a dotted name, which reaches through a module.
    yield f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    yield f"(S'touch {mark}'\nios\nsystem\n.".encode()
    yield "\x80\x04\x8c\x05numpy\x8c\x09os.system\x93\x8c\x06touch \x85R.".encode("latin1")
    yield b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."


def test_a_pickle_cannot_run_anything(tmp_path):
    mark = tmp_path / "ran"
    for number, data in enumerate(evil_pickles(mark)):
        with pytest.raises(DataError, match=says("batch")):
            load_plain(data, "batch")
        assert not mark.exists(), number
    evil = pickle.dumps(Evil(os.mkdir, str(mark)))
    files = makers.cifar10_python() | {"data_batch_5": evil}
    for source in (makers.in_folder(tmp_path / "a", files), makers.in_archive(tmp_path / "a.tar.gz", files)):
        refused(says(f"{source}: data_batch_5", "posix.mkdir"), source)
    assert not mark.exists()
    pickle.loads(evil)  # what this test is worth: the plain unpickler runs the same bytes
    assert mark.exists()


def test_names_of_python_2_are_read():
    # As Python 2 wrote {'label_names': ['cat'], 'data': uint8 [[1, 2]]}: texts and array contents are byte
    # strings.
    data = (
        b"\x80\x02}q\x01(U\x0blabel_names]U\x03cataU\x04datacnumpy.core.multiarray\n_reconstruct\n"
        b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x01\x02tbu."
    )
    read = load_plain(data, "batch")
    assert read["label_names"] == [b"cat"] and read["data"].tolist() == [[1, 2]]


# ── folders of images ───────────────────────────────────────────────────────────────────────────────────────
def test_folder_without_division_and_a_class_called_train(tmp_path):
    for name, colour in (("b/2.png", (3, 4, 5)), ("b/1.png", (0, 1, 2)), ("a/9.bmp", (6, 7, 8))):
        makers.image(tmp_path / "f" / name, "RGB", colour)
    read = read_source(tmp_path / "f")
    assert read.classes == ("a", "b") and read.train.labels.tolist() == [0, 1, 1] and read.test is None
    assert read.train.images.shape == (3, 4, 5, 3) and read.name == "f" and read.notes == ()
    assert read.train.images[:, 2, 2].tolist() == [[6, 7, 8], [0, 1, 2], [3, 4, 5]]
    makers.image(tmp_path / "f" / "train" / "1.png", "L", 2)
    assert read_source(tmp_path / "f").classes == ("a", "b", "train")


def test_grey_images_among_colour_ones_become_rgb_and_all_grey_stay(tmp_path):
    makers.image(tmp_path / "a" / "1.png", "L", 7)
    makers.image(tmp_path / "a" / "2.png", "LA", (9, 100))
    assert read_source(tmp_path).train.images.shape == (2, 4, 5, 1)
    makers.image(tmp_path / "a" / "3.png", "RGBA", (1, 2, 3, 50))
    read = read_source(tmp_path)
    assert read.train.images[:, 0, 0].tolist() == [[7, 7, 7], [9, 9, 9], [1, 2, 3]]
    assert read.notes == ("2 grey images among 3 became RGB",)


def test_differing_sizes_need_a_size(tmp_path):
    makers.image(tmp_path / "a" / "1.png", "L", 7)
    makers.image(tmp_path / "a" / "2.png", "L", 7)
    makers.image(tmp_path / "b" / "1.png", "L", 9, size=(6, 8))
    refused(says("--size", tmp_path / "a/1.png", "4x5", tmp_path / "b/1.png", "8x6"), tmp_path)
    read = read_source(tmp_path, size=(2, 3))
    assert read.train.images.shape == (3, 2, 3, 1) and (read.train.images[2] == 9).all()
    assert read.notes == ("images were resized to 2x3, without keeping their proportions",)


def test_folders_that_cannot_be_read(tmp_path, monkeypatch):
    good = makers.image(tmp_path / "train" / "rose" / "1.png", "L", 7)
    makers.image(tmp_path / "test" / "rise" / "1.png", "L", 7)
    refused(says("rise", nearest("rise", ["rose"])), tmp_path)
    (tmp_path / "train" / "tulip").mkdir()
    refused(says("tulip"), tmp_path / "train")
    (tmp_path / "train" / "tulip").rmdir()
    for data in (good.read_bytes()[:40], b"hello"):
        good.write_bytes(data)
        refused(says("rose/1.png"), tmp_path / "train")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(says("--upgrade"), tmp_path / "train")


# ── which reader ────────────────────────────────────────────────────────────────────────────────────────────
def test_what_nobody_understands_lists_what_is_understood(tmp_path):
    (tmp_path / "a.doc").write_text("hello")
    message = refused(says("a.doc", "none", "these"), tmp_path / "a.doc")
    assert [line[:8] for line in message.splitlines()[1:]] == [
        "  - IDX:",
        "  - CIFA",
        "  - text",
        "  - .npz",
        "  - a fo",
    ]
    refused(says("nothing", "exist", "source"), tmp_path / "nothing")
    refused(says("none", "these"), tmp_path)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    refused(says("--size"), tmp_path / "a.npz", size=(2, 2))


# ── make, cut ───────────────────────────────────────────────────────────────────────────────────────────────
def test_make_dataset_reads_cuts_and_writes(tmp_path):
    source, steps = makers.idx_folder(tmp_path / "some"), []
    (source / "t10k-images-idx3-ubyte").unlink()
    (source / "t10k-labels-idx1-ubyte").unlink()
    content = make_dataset(
        source, tmp_path / "o.h5", "named", 0.3, 1, progress=lambda what, done, total: steps.append(what)
    )
    opened = open_dataset(tmp_path / "o.h5")
    assert opened.name == content.name == "named"
    assert (opened.train.count, opened.test.count) == (4, 2) and set(steps) == {"writing"}
    seen = sorted([*opened.train.images[:, 0, 0, 0], *opened.test.images[:, 0, 0, 0]])
    assert seen == [0, 1, 2, 3, 4, 5]


def test_labels_and_shapes_of_both_parts_count_and_an_existing_target_is_refused_before_reading(tmp_path):
    path, none = tmp_path / "a.npz", np.full(4, -1)
    for arrays, words in (
        ({"x": X, "y": none}, ["a.npz"]),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :2], "y_test": Y}, ["uint8 (2, 4, 1)", "uint8 (3, 4, 1)"]),
    ):
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=says(*words)):
            make_dataset(path, tmp_path / "o.h5")
        assert os.listdir(tmp_path) == ["a.npz"]
    np.savez(path, x_train=X, y_train=none, x_test=X, y_test=Y)
    make_dataset(path, tmp_path / "a.h5")
    assert check_file(tmp_path / "a.h5") == [] and len(open_dataset(tmp_path / "a.h5").classes) == 3
    (tmp_path / "o.h5").write_text("mine")
    with pytest.raises(DataError, match=says("--force", "o.h5")):
        make_dataset(tmp_path / "nothing", tmp_path / "o.h5")
    assert (tmp_path / "o.h5").read_text() == "mine"


def test_a_cut_depends_on_seed_and_count_alone():
    whole = content(train=40, test=0)
    cuts = [in_memory(split_test(whole, 0.25, seed)) for seed in (0, 0, 1)]
    assert [cut.test.count for cut in cuts] == [10] * 3 and [cut.train.count for cut in cuts] == [30] * 3
    assert (cuts[0].test.images == cuts[1].test.images).all()
    assert (cuts[0].test.images != cuts[2].test.images).any()
    rows = np.concatenate([cuts[0].train.images, cuts[0].test.images]).reshape(40, -1)
    assert (np.unique(rows, axis=0) == np.unique(whole.train.inputs.array.reshape(40, -1), axis=0)).all()
    # Both parts keep the order of the source.
    where = [
        int(np.flatnonzero((whole.train.inputs.array == image).all((1, 2, 3)))[0]) for image in cuts[0].test.images
    ]
    assert where == sorted(where) == [0, 1, 3, 5, 19, 28, 31, 32, 34, 35]


def test_a_fraction_that_leaves_nothing_and_a_cut_of_what_has_a_test_part_are_refused():
    for fraction in (0, 1, -0.1, 1.5, 0.999, float("nan")):
        with pytest.raises(DataError, match=says("--test-fraction")):
            split_test(content(test=0), fraction, 0)
    with pytest.raises(DataError, match=says("--test-fraction", "tiny", 5)):
        split_test(content(), 0.5, 0)
