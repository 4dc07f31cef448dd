"""Data sets from files of other programs, by all that ``--data`` names, in memory and streamed; and bad ones."""

import io
import resource
import tracemalloc

import h5py
import numpy as np
import pytest

from ringtrain.data.batches.order import Windows
from ringtrain.data.batches.sampler import Sampler
from ringtrain.data.file import contents
from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.grammar import AS_STORED, Layout
from ringtrain.data.file.statistics import pixel_statistics
from ringtrain.data.inputs import unlabelled
from ringtrain.data.readers.make import make_dataset
from ringtrain.data.stored.base import MemoryArray
from ringtrain.errors import DataError
from tests.data.data_makers import make_batches, read_rows
from tests.says import says

RANDOM = np.random.default_rng(5)
X = RANDOM.integers(0, 256, (60, 4, 5, 3)).astype(np.uint8)
Y = np.resize(np.arange(7), 60)
FIELDS = RANDOM.normal(3, 2, (60, 6, 5, 2)).astype(np.float32)


def h5(path, chunks=None, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            how = {"chunks": (chunks, *array.shape[1:]), "compression": "gzip"} if chunks else {}
            file.create_dataset(name, data=array, **how)
    return path


def written(folder, kind):
    """What --data names: the same 60 examples in another kind of files."""
    if kind == "npy":
        np.save(folder / "x.npy", X), np.save(folder / "y.npy", Y)
        return f"{folder}/x.npy,{folder}/y.npy"
    if kind == "npz":
        np.savez(folder / "a.npz", x=X, y=Y[:, None])
        return folder / "a.npz"
    if kind == "packed npz":
        np.savez_compressed(folder / "a.npz", images=X, labels=Y)
        return folder / "a.npz"
    if kind == "columns":
        np.save(folder / "x.npy", np.asfortranarray(X)), np.save(folder / "y.npy", Y)
        return f"{folder}/x.npy,{folder}/y.npy"
    if kind == "packed columns":
        np.savez_compressed(folder / "a.npz", train_images=np.asfortranarray(X), train_labels=Y[:, None])
        return folder / "a.npz"
    if kind == "soft links":
        with h5py.File(h5(folder / "a.h5", **{"in/put": X, "la/bel": Y}), "r+") as file:
            file["x"], file["in/y"] = h5py.SoftLink("/in/put"), h5py.SoftLink("/la")
            file["y"] = h5py.SoftLink("in/y/bel")
        return folder / "a.h5"
    if kind == "pattern":
        for number, rows in enumerate(np.split(np.arange(60), [7, 30])):
            h5(folder / f"train-{number}.h5", chunks=4 if number == 1 else None, images=X[rows], labels=Y[rows])
        return f"{folder}/train-*.h5"
    names = {"h5": ("x", "y"), "chunked h5": ("in/put", "la/bel"), "known h5": ("x_train", "y_train")}[kind]
    h5(folder / "a.h5", chunks=8 if kind == "chunked h5" else None, **dict(zip(names, (X, Y), strict=True)))
    return f"{folder}/a.h5" + ("" if kind == "known h5" else ":" + ",".join(names))


NO_ROWS = ("packed npz", "columns", "packed columns")
KINDS = ("npy", "npz", "pattern", "h5", "chunked h5", "known h5", "soft links", *NO_ROWS)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_examples_from_every_kind_of_file(tmp_path, kind, streamed):
    named, out = written(tmp_path, kind), tmp_path / "made.h5"
    if streamed and kind in NO_ROWS:
        with pytest.raises(DataError, match=says("--stream")):
            open_dataset(named, most_bytes=0)
        return
    data = open_dataset(named, most_bytes=0 if streamed else None)
    assert (data.location, data.classes) == ("streamed" if streamed else "private", tuple("0123456")) and not data.test
    assert (data.train.count, data.train.shape, data.train.dtype) == (60, (4, 5, 3), np.uint8)
    for examples in ([], [59], range(60), [3, 40, 8, 9, 10, 59, 0, 7, 30, 29, 3]):
        images, labels = read_rows(data.train, examples)
        assert (images == X[list(examples)]).all() and (labels == Y[list(examples)]).all()
    right = pixel_statistics(MemoryArray(X))
    assert (data.mean == right.mean).all() and (data.mean_image == right.mean_image).all()
    assert data.train.checksum == open_dataset(h5(tmp_path / "other.h5", x=X, y=Y)).train.checksum
    assert check_file(named) == [] and (data.train.image(5) == X[5]).all()
    make_dataset(named, out)
    same = open_dataset(out, most_bytes=0 if streamed else None)
    assert (
        same.checksum == data.checksum
        and check_file(out) == []
        and (read_rows(same.train, [7, 2])[0] == X[[7, 2]]).all()
    )


@pytest.mark.parametrize("most", [None, 0])
def test_channels_first_and_an_ignored_label_are_those_of_a_file_that_has_them_last(tmp_path, most):
    masks = np.where(X[..., 0] > 250, 255, X[..., 0].astype(int) % 3)
    np.savez(tmp_path / "last.npz", x=FIELDS, y=np.where(masks == 255, -1, masks)[:, :4])
    np.savez(tmp_path / "first.npz", x=np.moveaxis(FIELDS, -1, 1), y=masks[:, :4].astype("u1"))
    layout = Layout("channels-first", 255)
    first, last = (
        open_dataset(tmp_path / f"{name}.npz", extents=3, most_bytes=most, layout=how)
        for name, how in (("first", layout), ("last", AS_STORED))
    )
    assert first.checksum == last.checksum and first.classes == ("0", "1", "2")
    for one, other in zip(read_rows(first.train, [8, 0, 3]), read_rows(last.train, [8, 0, 3]), strict=True):
        assert (one == other).all()
    make_dataset(tmp_path / "first.npz", tmp_path / "made.h5", layout=layout)
    assert open_dataset(tmp_path / "made.h5", layout=layout).train.checksum == last.train.checksum
    assert check_file(tmp_path / "first.npz", layout=layout) == []
    with pytest.raises(DataError, match=says("--ignore-label", 2)):
        open_dataset(tmp_path / "made.h5", layout=Layout(None, 2))


def test_labels_with_the_axes_of_the_inputs_are_channels_first_too_and_inputs_without_channels_are_not(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.moveaxis(FIELDS, -1, 1), y=np.moveaxis(FIELDS[..., :1], -1, 1))
    train = open_dataset(tmp_path / "a.npz", extents=3, layout=Layout("channels-first")).train
    assert (read_rows(train, [5])[1] == FIELDS[[5], ..., :1]).all()
    np.save(tmp_path / "x.npy", FIELDS[..., 0])
    assert open_dataset(tmp_path / "x.npy", extents=3, layout=Layout("channels-first")).train.shape == (6, 5, 1)


def test_booleans_fill_values_and_what_an_example_without_a_number_says(tmp_path):
    np.savez(tmp_path / "a.npz", x=X > 99, y=Y > 3)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = X > 99
        file.create_dataset("y", (60,), "i4", fillvalue=1)
    a, b = (open_dataset(tmp_path / name).train for name in ("a.npz", "b.h5"))
    assert (a.images == b.images).all() and (a.images == (X > 99)).all() and a.dtype == np.uint8
    assert (a.labels == (Y > 3)).all() and (b.labels == 1).all()
    wrong = FIELDS[:, 0, :, 0].copy()
    wrong[31:33, 3], wrong[40, 1] = np.nan, np.inf
    np.savez(tmp_path / "c.npz", x=wrong, y=Y)
    np.savez(tmp_path / "d.npz", x=wrong[:40], y=wrong[:40])
    for name, words in {"c": ("example 31, column 3", "2 of 5"), "d": ("d.npz: ", "example 31, column 3")}.items():
        for read in (open_dataset, lambda path: make_dataset(path, tmp_path / "o.h5", test_fraction=0.1, seed=2)):
            with pytest.raises(DataError, match=says(*words)):
                read(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("suffix", ["h5", "npz"])
def test_more_compressed_files_than_may_be_open(tmp_path, suffix):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(128, limits[1]), limits[1]))
    try:
        for number, rows in enumerate(np.resize(np.arange(60), (150, 3))):
            if suffix == "h5":
                h5(tmp_path / f"{number:03}.h5", chunks=3, x=X[rows], y=Y[rows])
            else:
                np.savez_compressed(tmp_path / f"{number:03}.npz", x=X[rows], y=Y[rows])
        data = open_dataset(f"{tmp_path}/*.{suffix}", most_bytes=0 if suffix == "h5" else None)
        images, labels = read_rows(data.train, np.arange(450)[::-7])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    rows = np.resize(np.arange(60), 450)[::-7]
    assert (images == X[rows]).all() and (labels == Y[rows]).all()


def test_an_axis_of_channels_where_the_network_has_one(tmp_path):
    np.save(tmp_path / "x.npy", FIELDS[..., 0])
    assert open_dataset(tmp_path / "x.npy").train.shape == (6, 5, 1)
    for most_bytes in (None, 0):
        data = open_dataset(tmp_path / "x.npy", extents=3, most_bytes=most_bytes)
        assert data.train.shape == (6, 5, 1) and data.classes == () and data.train.valid(np.arange(9)) == 0
        images, labels = read_rows(data.train, [8, 0, 3])  # of no labels
        assert (images[..., 0] == FIELDS[[8, 0, 3], ..., 0]).all() and (labels == -1).all()
    assert open_dataset(tmp_path / "x.npy", extents=2).train.shape == (6, 5)


@pytest.mark.parametrize("most", [None, 0])
@pytest.mark.parametrize("chunks", [None, 7])
@pytest.mark.parametrize(
    "labels",
    [
        np.resize([0, -1, 3, 2, -1], (60, 6, 5)).astype(np.int16),
        FIELDS[..., :1].astype(np.float16),
        np.arange(60) / 7,
        np.arange(120.0).reshape(60, 2).astype("f4"),
    ],
    ids=["dense classes", "dense values", "one value", "two values"],
)
def test_labels_of_any_shape(tmp_path, labels, chunks, most):
    path = h5(tmp_path / "a.h5", chunks, fields=FIELDS, truth=labels)
    data = open_dataset(f"{path}:fields,truth", most_bytes=most)
    whole, train = labels.dtype.kind == "f", data.train
    assert train.label_shape == labels.shape[1:] and train.has_classes is False
    assert train.label_dtype == (np.int32 if not whole else np.float64 if labels.dtype == "f8" else np.float32)
    assert data.classes == (() if whole else tuple("0123"))
    chosen = np.array([50, 3, 7])
    assert (read_rows(train, chosen)[1] == labels[chosen]).all()
    assert train.valid(chosen) == (labels[chosen].size if whole else (labels[chosen] != -1).sum())


def test_a_test_part_beside_and_names_of_classes(tmp_path):
    path = h5(tmp_path / "a.h5", images=X[:40], labels=Y[:40])
    np.savez(tmp_path / "b.npz", x=X[40:], y=Y[40:])
    with h5py.File(path, "r+") as file:
        file.attrs["classes"] = list("abcdefg")
    data = open_dataset(path, test=tmp_path / "b.npz")
    assert (data.train.count, data.test.count, data.classes) == (40, 20, tuple("abcdefg"))
    np.savez(tmp_path / "c.npz", x_train=X[:9], y_train=Y[:9], x_test=X[9:15], y_test=Y[9:15] + 3)
    assert open_dataset(tmp_path / "c.npz").test.count == 6 and len(open_dataset(tmp_path / "c.npz").classes) == 10
    assert open_dataset("digits", test="digits").checksum == open_dataset("digits").checksum
    for other, problem in (
        ({"x": X[:5, :3], "y": Y[:5]}, says("uint8 (4, 5, 3)")),
        ({"x": X[:5], "y": Y[:5] / 2}, says("part", "type")),
        ({"x": X[:5], "y": Y[:5] + 3}, says("test", 7)),
    ):
        np.savez(tmp_path / "d.npz", **other)
        with pytest.raises(DataError, match=problem):
            open_dataset(path, test=tmp_path / "d.npz")


def test_streamed_and_whole_are_one_data_set(tmp_path, monkeypatch):
    """The same order, examples and checksum, also where the checksum and the statistics are of a sample."""
    path = f"{h5(tmp_path / 'a.h5', x=X, y=Y)}:x,y"
    exact = open_dataset(path)
    monkeypatch.setattr(contents, "VERIFY_BYTES", 100)
    whole, streamed = open_dataset(path), open_dataset(path, most_bytes=0)
    assert whole.checksum == streamed.checksum and whole.train.checksum == exact.train.checksum  # all are in the sample
    np.testing.assert_allclose(whole.mean, exact.mean)
    sampler = Sampler(60, 7, 3, windows=Windows(60, 4, 5))
    batches = [make_batches(data.train, sampler, stop=20) for data in (whole, streamed)]
    for one, other in zip(*batches, strict=True):
        assert (one.images == other.images).all() and (one.labels == other.labels).all()
    for each in batches:
        each.close()


def test_a_sample_is_fixed_and_within_the_set():
    assert (contents.sample(10**7) == contents.sample(10**7)).all() and contents.sample(10).tolist() == list(range(10))
    drawn = contents.sample(10**7)
    assert len(drawn) > 4000 and drawn.max() > 0.99 * 10**7 > drawn.min() * 100 and (np.diff(drawn) > 0).all()


def test_changed_examples_have_another_checksum(tmp_path):
    sums = set()
    for number, (x, y) in enumerate(
        [(X, Y), (X[::-1], Y), (X, Y[::-1]), (X, Y / 1), (X.astype("i2"), Y), (X, Y[:, None, None])]
    ):
        np.savez(tmp_path / f"{number}.npz", x=x, y=y)
        sums.add(open_dataset(tmp_path / f"{number}.npz").train.checksum)
    assert len(sums) == 6


# ── what is wrong ─────────────────────────────────────────────────────────────────────────────────────────────
NAN = np.where(np.arange(60) == 9, np.nan, 1.0)


ELSEWHERE = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]


def array(data=None, shape=None, dtype=None, **how):
    return lambda file: file.create_dataset("there", shape, dtype, data=data, **how)


WRONG_H5 = {
    "no such array": (lambda f: None, says("an", "array")),
    "an external link": (lambda f: f.__setitem__("there", h5py.ExternalLink("other.h5", "/x")), says("an", "array")),
    "values elsewhere": (array(None, (60, 2, 2), "u1", external=ELSEWHERE), says("keeps", "into")),
    "a soft link out of the file": (lambda f: f.__setitem__("there", h5py.SoftLink("/out")), says("there", "link")),
    "a loop": (lambda f: f.__setitem__("there", h5py.SoftLink("there")), says("there", "link")),
    "another filter": (array(np.zeros((60, 2), "i4"), scaleoffset=8, chunks=(60, 2)), says("scaleoffset", "h5repack")),
    "a group": (lambda f: f.create_group("there"), says("an", "array")),
    "objects": (array(np.array([b"text"] * 60, h5py.string_dtype())), says("object")),
    "compounds": (array(np.zeros(60, [("a", "u1")])), says("floats", "up")),
    "complex": (array(np.zeros((60, 2), "c16")), says("complex128")),
    "a bomb": (array(None, (1 << 40, 4), "u1", chunks=(512, 4), compression="gzip"), says("claims", "stored")),
    "other count": (array(np.zeros((61, 4), "u1")), says(61, "label", "labels")),
    "no inputs": (array(np.zeros(60, "f4")), says("(60,)")),
    "no width": (array(None, (60, 0, 3), "f4"), says("axis", "counts")),
    "NaN": (array(NAN[:, None]), says("NaN", "infinite")),
}


@pytest.mark.parametrize("most", [None, 0])
@pytest.mark.parametrize("what", WRONG_H5)
def test_wrong_arrays_of_hdf5(tmp_path, what, most):
    change, problem = WRONG_H5[what]
    path = h5(tmp_path / "a.h5", y=Y)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=problem) as refusal:
        open_dataset(f"{path}:there,y", most_bytes=most)
    assert str(path) in str(refusal.value) and refusal.value.exit_code == 2
    assert len(check_file(f"{path}:there,y")) == 1


X0, Y0 = np.arange(48, dtype=np.uint8).reshape(4, 3, 4), np.array([0, 2, 1, 2])
WRONG_NPZ = {
    "other names": ({"a": X0, "b": Y0}, says("a, b")),
    "half a test part": ({"x_train": X0, "y_train": Y0, "x_test": X0}, says("x_test", "y_test")),
    "objects": ({"x": X0.astype(object), "y": Y0}, says("object")),
    "text": ({"x": X0, "y": np.array(["a", "b", "a", "b"])}, says("a.npz: y", "numpy.unique")),
    "no axes": ({"x": X0[:, 0, 0], "y": Y0}, says("(4,)")),
    "no examples": ({"x": X0[:0], "y": Y0[:0]}, says("a.npz: x")),
    "few labels": ({"x": X0, "y": Y0[:3]}, says("(3,)", 4)),
    "negative labels": ({"x": X0, "y": Y0 - 2}, says(-2, 0, "label", "lie")),
    "high labels": ({"x": X0, "y": Y0 * 40_000}, says(0, 80000, "label", "lie")),
    "labels beyond int32": ({"x": X0, "y": Y0 << 40}, says(0, "label", "lie")),
    "values that are not finite": ({"x": X0, "y": np.array([0, np.nan, 1, 1])}, says("NaN", "infinite")),
    "dense ones": ({"x": X0, "y": np.full((4, 60), np.inf)}, says("NaN", "infinite")),
}


@pytest.mark.parametrize("what", WRONG_NPZ)
def test_wrong_arrays_are_refused_by_training_and_by_make(tmp_path, what):
    arrays, problem = WRONG_NPZ[what]
    np.savez(tmp_path / "a.npz", **arrays)
    for read in (
        open_dataset,
        lambda path: open_dataset(path, most_bytes=0),
        lambda path: make_dataset(path, tmp_path / "o.h5"),
    ):
        with pytest.raises(DataError, match=problem):
            read(tmp_path / "a.npz")
    assert check_file(tmp_path / "a.npz") and not (tmp_path / "o.h5").exists()


def test_channels_first_and_a_damaged_archive_are_made_into_no_file(tmp_path):
    path, whole = tmp_path / "a.npz", io.BytesIO()
    np.savez(path, x=np.zeros((4, 3, 32, 32), "u1"), y=Y0)
    np.savez(whole, x=X, y=Y)
    for data, words in ((path.read_bytes(), (4, 3, 32, 32)), (whole.getvalue()[:-30], "a.npz"), (b"hello", "a.npz")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=says(words)):
            make_dataset(path, tmp_path / "o.h5")
        assert not (tmp_path / "o.h5").exists()


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def npy(path, array):
    np.save(path, array, allow_pickle=True)
    return path


def test_wrong_names_and_files_of_numpy(tmp_path):
    np.savez(tmp_path / "a.npz", a=X, b=Y)
    for name, array in {"x": X, "objects": X.astype(object), "cut": X}.items():
        npy(tmp_path / f"{name}.npy", array)
    truncated(tmp_path / "cut.npy")
    (tmp_path / "text.npy").write_text("none"), (tmp_path / "t.csv").write_text("1,2")
    h5(tmp_path / "p-0.h5", x=X, y=Y), h5(tmp_path / "p-1.h5", x=X[:, 1:], y=Y), h5(tmp_path / "q.h5", other=X)
    for named, problem in {
        "a.npz": says("a, b"),
        "a.npz:a,c": says("c", "a, b"),
        "a.npz:a,b,c": says("colon", "FILE"),
        "a.npz:a,": says("colon", "FILE"),
        "q-*.h5": says("matches", "pattern"),
        "q.h5": says("None", "other uint8 [60, 4, 5, 3]"),
        "t.csv": says("delimiter=','", "t.npz"),
        "p-*.h5": says("files", "type"),
        "x.npy:a": says("stands", "colon"),
        "x.npy,y": says("inputs", "npy"),
        "objects.npy": says("object"),
        "cut.npy": says("truncated", "byte"),
        "text.npy": says("could", "read"),
        "y.npy": says("set", "make"),
    }.items():
        with pytest.raises(DataError, match=problem):
            open_dataset(f"{tmp_path}/{named}")


def test_a_file_that_is_cut_while_it_is_streamed(tmp_path):
    """One clear error, and no rows of zeros; labels that are changed to no class are no index either."""
    path = npy(tmp_path / "x.npy", X)
    dense = npy(tmp_path / "y.npy", np.zeros((60, 4), np.int64))
    train = open_dataset(f"{path},{dense}", most_bytes=0).train
    np.lib.format.open_memmap(dense, mode="r+")[7] = 5
    with pytest.raises(DataError, match=says(5, 1, "changed", "opened")):
        read_rows(train, [6, 7])
    truncated(path)
    with pytest.raises(DataError, match=says("lies", "cut")):
        read_rows(train, [3, 59])


# ── data make ─────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dtype", ["int16", "float16", "float64"])
def test_a_file_of_fields_and_values(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", x=FIELDS.astype(dtype), y=FIELDS[..., :1])
    make_dataset(tmp_path / "a.npz", tmp_path / "made.h5", test_fraction=0.2)
    data = open_dataset(tmp_path / "made.h5")
    assert (data.train.count, data.test.count, data.classes) == (48, 12, ()) and check_file(tmp_path / "made.h5") == []
    rows = np.concatenate([read_rows(split, range(split.count))[1] for _, split in data.splits()])
    assert sorted(rows[..., 0].sum(axis=(1, 2))) == pytest.approx(sorted(FIELDS[..., 0].sum(axis=(1, 2))))


def test_a_large_source_is_never_whole_as_a_whole(tmp_path):
    """A file of 96 MiB; what is allocated at any time is a few blocks of 16 MiB."""
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (96 << 10, 32, 32))
    array[:: 1 << 10, 0, 0] = np.arange(96)
    array.flush()
    np.save(tmp_path / "y.npy", np.resize(np.arange(5), 96 << 10))
    tracemalloc.start()
    make_dataset(f"{tmp_path}/x.npy,{tmp_path}/y.npy", tmp_path / "made.h5")
    data = open_dataset(tmp_path / "made.h5", most_bytes=0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 << 20 and read_rows(data.train, [5 << 10])[0][0, 0, 0, 0] == 5


@pytest.mark.parametrize(
    ("shape", "array", "count"),
    [
        ((256, 1), (4, 256), 4), ((256, 1), (256,), 1), ((256, 1), (4, 256, 1), 4), ((6, 5, 4, 1), (3, 6, 5, 4), 3),
        ((28, 28, 1), (2, 30, 31), 2), ((28, 28, 1), (30, 31), 1), ((5,), (3, 5), 3), ((5,), (5,), 1),
    ],
)  # fmt: skip
def test_an_array_to_predict_may_lack_the_axis_of_one_channel(shape, array, count):
    split = unlabelled(np.zeros(array, np.float32), shape, "x.npy")
    assert (split.count, len(split.shape), split.shape[-1]) == (count, len(shape), shape[-1])


def test_a_check_sees_a_value_that_a_sample_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "VERIFY_BYTES", 0)
    x = np.ones((5000, 3), np.float32)
    (unseen, *_) = np.setdiff1d(np.arange(5000), contents.sample(5000))
    x[unseen, 2] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=x[:, :1] * 0)
    assert open_dataset(tmp_path / "a.npz").train.count == 5000
    assert says("x", "1 in all", f"example {unseen}, column 2").matches("".join(check_file(tmp_path / "a.npz")))
