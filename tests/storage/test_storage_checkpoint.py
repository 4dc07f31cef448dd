import os
import random

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain.errors import CheckpointError, UsageError
from ringtrain.storage.checkpoint import seal, store
from tests.says import says

# What is saved is loaded.


def test_a_checkpoint_comes_back_bit_for_bit_and_alone(saved, make, equal):
    assert equal(store.load_checkpoint(saved), make())
    for checkpoint in (make(8), make(best=None, optimizer={}, scalars={}, model="", data_name="")):
        store.save_checkpoint(saved, checkpoint)
        assert equal(store.load_checkpoint(saved), checkpoint) and os.listdir(saved.parent) == ["a.h5"]
    store.save_checkpoint(saved.with_name("b"), checkpoint)
    assert saved.read_bytes() == saved.with_name("b").read_bytes()


def test_arrays_of_any_type_and_layout_are_kept(tmp_path, make):
    values, types = np.arange(24.0).reshape(2, 3, 4), ("f2", "f4", "f8", "i4", "i8", "u1", "?", ">f4")
    arrays = {"t": values.T, "step": values[:, ::2], "none": values[:0], "one": values[0, 0, :1]}
    arrays |= {dtype: np.arange(6).reshape(2, 3).astype(dtype) for dtype in types}
    store.save_checkpoint(tmp_path / "a.h5", make(optimizer={"slot": arrays}))
    loaded = store.load_checkpoint(tmp_path / "a.h5").optimizer["slot"]
    for name, array in arrays.items():
        assert loaded[name].shape == array.shape and loaded[name].dtype == array.dtype.newbyteorder("<"), name
        assert np.array_equal(loaded[name], array), name


@settings(max_examples=40)
@given(name=st.text(st.characters(codec="utf-8"), min_size=1), text=st.text(st.characters(codec="utf-8")))
def test_any_name_and_any_text(tmp_path_factory, make, name, text):
    path = tmp_path_factory.getbasetemp() / "any.h5"
    store.save_checkpoint(path, make(optimizer={"slot": {f"{name}.w": np.ones(2)}}, model=text))
    loaded = store.load_checkpoint(path)
    assert list(loaded.optimizer["slot"]) == [f"{name}.w"]
    assert loaded.model == text


def test_the_file_is_hdf5_for_any_reader_and_its_metadata_are_checksummed(saved, make):
    """Superblocks have checksums from version 2 on, and the headers of objects from OHDR on."""
    content = saved.read_bytes()[seal.BLOCK :]
    assert content.startswith(b"\x89HDF\r\n\x1a\n") and content[8] >= 2
    assert b"OHDR" in content and b"TREE" not in content and b"SNOD" not in content
    with h5py.File(saved) as file:
        assert file.attrs["iteration"] == 7 and bytes(file["text/config"][...]) == b"seed = 1\n"
        assert np.array_equal(file["weights/fc.bias"], make().weights["fc.bias"])


# Damage is found, wherever it is.


def test_a_flipped_bit_of_any_byte_every_truncation_and_a_byte_more_are_found(saved):
    whole, draw = saved.read_bytes(), random.Random(1)
    for offset in [*range(0, seal.BLOCK, 2), *draw.sample(range(seal.BLOCK, len(whole)), 600)]:
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << draw.randrange(8)
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"a\.h5"):
            store.load_checkpoint(saved)
    for length in [*range(0, len(whole), 13), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=says("damaged", "long")):
            store.load_checkpoint(saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match=says(f"{len(whole) + 1:,}", f"{len(whole):,}")):
        store.load_checkpoint(saved)


def test_under_a_right_seal_a_flipped_bit_is_found_or_changes_nothing(saved, make, equal, reseal):
    """The second line of defence: damage from before the file was sealed, in memory or in the HDF5 library."""
    whole, draw = saved.read_bytes(), random.Random(2)
    refused = 0
    for offset in draw.sample(range(seal.BLOCK, len(whole)), 250):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << draw.randrange(8)
        saved.write_bytes(damaged)
        reseal(saved)
        try:
            assert equal(store.load_checkpoint(saved), make())
        except CheckpointError:
            refused += 1
    assert refused > 120


def test_swapped_arrays_are_found(saved, reseal):
    def swap(file):
        one, other = "optimizer/velocity/fc.bias", "optimizer/second/fc.bias"
        file.move(one, "aside")
        file.move(other, one)
        file.move("aside", other)

    reseal(saved, swap)
    with pytest.raises(CheckpointError, match=says("/optimizer/velocity/fc.bias")):
        store.load_checkpoint(saved)


NONE = says("a.h5")
NO_HDF5 = b"not HDF5 at all" * 100
OTHERS = {
    "none": (lambda path: path.unlink(), says("a.h5", "No such file or directory")),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), says("a.h5", "Is a directory")),
    "a text": (lambda path: path.write_bytes(b"hello"), NONE),
    "HDF5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(2000)), NONE),
    "bytes": (lambda path: path.write_bytes(b"\xff" * 600), NONE),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), NONE),
    "a device": (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), NONE),
    "another version": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"checkpoint 1", b"checkpoint 2", 1)),
        says("2", 1),
    ),
    "a first line of other words": (
        lambda path: path.write_bytes(path.read_bytes().replace(b" bytes ", b" wytes x", 1)[:-1]),
        says("line", "writes"),
    ),
    "no HDF5 under a seal": (lambda path: path.write_bytes(seal.make_seal(memoryview(NO_HDF5)) + NO_HDF5), NONE),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_checkpoint_of_ours_is_refused(saved, what):
    change, message = OTHERS[what]
    change(saved)
    with pytest.raises(CheckpointError, match=message) as refusal:
        store.load_checkpoint(saved)
    assert str(saved) in str(refusal.value)


# Writing fails cleanly.


def test_a_folder_that_may_not_be_written_no_folder_and_a_folder_in_its_place(tmp_path, forbidden_folder, make):
    with pytest.raises(UsageError, match=says("--out", "a.h5")):
        store.save_checkpoint(forbidden_folder / "a.h5", make())
    os.seteuid(os.getuid())
    (tmp_path / "a.h5").mkdir()
    for path, *words in ((tmp_path / "none" / "a.h5",), (tmp_path / "a.h5", "Is a directory")):
        with pytest.raises(UsageError, match=says("--out", path, *words)):
            store.save_checkpoint(path, make())


# Another model.


def test_parameters_that_differ_from_the_models_are_named_up_to_three(make):
    store.check_parameters(make(), {name: list(shape) for name, shape in make().shapes.items()}, "a.h5")
    shapes = {**make().shapes, "fc.bias": (10,), "new.weight": (2, 2)}
    del shapes["norm.größe"]
    differing = [("fc.bias", (5,), (10,)), ("new.weight", "absent", (2, 2)), ("norm.größe", (), "absent")]
    with pytest.raises(CheckpointError, match=says("runs/a.h5", "'mlp'", *(says(*each) for each in differing))):
        store.check_parameters(make(), shapes, "runs/a.h5")
    with pytest.raises(CheckpointError, match=says(6, "and", "more")):
        store.check_parameters(make(), {f"layer{k}.weight": (k,) for k in range(5)}, "a.h5")


def test_the_fingerprint_is_of_names_and_shapes_alone():
    one = store.fingerprint({"a": (2, 3), "b": ()})
    assert one == store.fingerprint({"b": (), "a": [np.int64(2), 3]})
    assert len({one, store.fingerprint({"a": (3, 2), "b": ()}), store.fingerprint({"a": (2, 3), "c": ()})}) == 3
