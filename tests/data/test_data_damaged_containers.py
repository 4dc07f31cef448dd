"""A bit of a container that holds a checksum is turned: the reader refuses the file, or its values are as before."""

import tarfile

import h5py
import numpy as np
import pytest
import source_makers as makers
from image_makers import encoded, tar

from ringtrain.data.batches.pictures import View
from ringtrain.data.file import contents
from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset, read_form
from ringtrain.data.image_files.open import open_images
from ringtrain.data.images import decode_image
from ringtrain.data.readers.make import make_dataset
from ringtrain.data.readers.sources import read_source
from ringtrain.errors import DataError
from tests.says import says

RANDOM = np.random.default_rng(11)
COUNT = 1200  # so that members of archives are larger than what zipfile reads at once
X = RANDOM.integers(0, 256, (COUNT, 4, 6)).astype(np.uint8)
Y = np.arange(COUNT) % 3
NOISE = RANDOM.integers(0, 256, (12, 11, 3)).astype(np.uint8)
PNGS = [("a/1.png", encoded(NOISE)), ("b/2.png", encoded(NOISE[::-1]))]
IDX = "train-images-idx3-ubyte"
FLIPS = 12  # of each container


def npz(path, save=np.savez):
    save(path, x=X, y=Y)


def fletcher(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, chunks=(300, 4, 6), fletcher32=True)
        file.create_dataset("y", data=Y, chunks=(300,), fletcher32=True)


def ringtrain_file(path):
    npz(path.with_name("s.npz"))
    make_dataset(path.with_name("s.npz"), path)


def values_of_data_set(path):
    data = open_dataset(path, most_bytes=0 if path.suffix != ".npz" or path.stem == "streamed" else None)
    return np.stack([data.train.image(number) for number in range(COUNT)]).tobytes(), data.train.labels.tobytes()


def values_of_source(path):
    content = read_source(path.parent if path.suffix == ".gz" and "ubyte" in path.name else path)
    return [np.asarray(part.inputs).tobytes() for _, part in content.parts()]


def values_of_images(path):
    split = open_images(str(path), View((8, 8)), 3).train
    return [split.image(number).tolist() for number in range(split.count)], split.labels.tolist()


def spans_of_chunks(path):
    with h5py.File(path) as file:
        for name in ("x", "y"):
            chunks = [file[name].id.get_chunk_info(number) for number in range(file[name].id.get_num_chunks())]
            yield from ((chunk.byte_offset, chunk.size) for chunk in chunks)


def spans_of_members(path):
    with tarfile.open(path) as file:
        yield from ((member.offset_data, member.size) for member in file)


def spans_of_arrays(path):
    with h5py.File(path) as file:
        for name in ("train/images", "train/labels"):
            yield file[name].id.get_offset(), file[name].nbytes


def archive_cifar(path):
    makers.in_archive(path, makers.cifar10_python())


# By name: the file, how it is written, how it is read, and the spans of bytes under a checksum; None: all.
CONTAINERS = {
    "npz": ("a.npz", npz, values_of_data_set, None),
    "streamed npz": ("streamed.npz", npz, values_of_data_set, None),
    "compressed npz": ("a.npz", lambda path: npz(path, np.savez_compressed), values_of_data_set, None),
    "Fletcher": ("a.h5", fletcher, values_of_data_set, spans_of_chunks),
    "our own": ("a.h5", ringtrain_file, values_of_data_set, spans_of_arrays),
    "IDX, gzip": (
        "train-images-idx3-ubyte.gz",
        lambda path: makers.idx_folder(path.parent, gz=True),
        values_of_source,
        None,
    ),
    "tar, gzip": ("a.tar.gz", archive_cifar, values_of_source, None),
    "tar, xz": ("a.tar.xz", archive_cifar, values_of_source, None),
    "PNG": ("a.tar", lambda path: tar(path, PNGS), values_of_images, spans_of_members),
}


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    """(path, its bytes, its values, places of its bytes) by name."""
    by_name = {}
    for name, (file, write, read, spans) in CONTAINERS.items():
        path = tmp_path_factory.mktemp("container") / file
        write(path)
        parts = spans(path) if spans else [(0, path.stat().st_size)]
        offsets = np.concatenate([np.arange(start, start + size) for start, size in parts])
        by_name[name] = path, path.read_bytes(), read(path), offsets
    return by_name


@pytest.mark.parametrize("number", range(FLIPS))
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_turned_bit_is_refused_or_harms_nothing(containers, name, number):
    path, data, values, offsets = containers[name]
    random = np.random.default_rng(number)
    changed = bytearray(data)
    changed[random.choice(offsets)] ^= 1 << int(random.integers(8))
    path.write_bytes(changed)
    try:
        read = CONTAINERS[name][2](path)
    except DataError as error:
        assert path.name in str(error) or path.parent.name in str(error)
    else:
        assert read == values
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["npz", "compressed npz", "Fletcher", "our own"])
def test_values_that_changed_are_refused_by_check_make_and_training(tmp_path, containers, name):
    path, data, _, offsets = containers[name]
    at = data.index(X[7].tobytes()) if name == "npz" else int(offsets[len(offsets) // 3])
    changed = bytearray(data)
    changed[at] ^= 4
    path.write_bytes(changed)
    try:
        assert check_file(path)
        for read in (open_dataset, lambda path: make_dataset(path, tmp_path / "o.h5")):
            with pytest.raises(DataError, match=path.name):
                read(path)
        assert not (tmp_path / "o.h5").exists()
    finally:
        path.write_bytes(data)
    assert check_file(path) == []


def test_labels_are_counted_only_where_they_are_good(tmp_path):
    npz(tmp_path / "a.npz")
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(Y.tobytes()) + 8 * 1000 + 1] ^= 2  # label 1 becomes 513
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match=says("archive", "says")):
        read_form(tmp_path / "a.npz")


def test_files_that_are_joined_keep_their_checksums(tmp_path):
    for number in (1, 2):
        ringtrain_file(tmp_path / f"part-{number}.h5")
    pattern = f"{tmp_path}/part-*.h5"
    assert check_file(pattern) == []
    with h5py.File(tmp_path / "part-2.h5", "r+") as file:
        file["train/images"][3] ^= 1
    assert any("part-2.h5" in problem for problem in check_file(pattern))
    for read in (open_dataset, lambda path: make_dataset(path, tmp_path / "o.h5")):
        with pytest.raises(DataError, match=r"part-2\.h5"):
            read(pattern)


def test_a_large_file_of_ours_is_verified_when_another_is_made_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "VERIFY_BYTES", 0)
    ringtrain_file(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["train/images"][3] ^= 1
    with pytest.raises(DataError, match=says("checksum", "says")):
        make_dataset(tmp_path / "a.h5", tmp_path / "o.h5")


def test_a_png_that_is_cut_is_told_as_such():
    whole = encoded(NOISE)
    with pytest.raises(DataError, match=says("a.png")):
        decode_image(whole[:-40], "a.png", 3)
    changed = bytearray(whole)
    changed[-20] ^= 1
    with pytest.raises(DataError, match=says("a.png", whole.index(b"IDAT") - 4)):
        decode_image(bytes(changed), "a.png", 3)
