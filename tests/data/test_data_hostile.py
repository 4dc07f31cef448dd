"""Data sets and pickles of someone who means harm: refused by name, nothing followed, nothing loaded, no room made."""

import os
import pickle
import resource
import struct
import time

import h5py
import numpy as np
import pytest

from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.readers import cifar
from ringtrain.data.readers.pickles import load_plain
from ringtrain.errors import DataError
from ringtrain.storage import hdf5
from tests.says import says


def test_filters_of_the_library_are_read_no_plugin_is_looked_for_and_a_pipe_is_no_data_set(tmp_path, tiny):
    hdf5.open_file(tiny).close()
    assert h5py.h5pl.size() == 0
    os.mkfifo(tmp_path / "a.h5")
    with pytest.raises(DataError, match=says("a.h5")):
        open_dataset(tmp_path / "a.h5")
    with h5py.File(tiny, "r+") as file:
        images = file["train/images"][...]
        del file["train/images"]
        how = {"chunks": True, "compression": "lzf", "shuffle": True, "fletcher32": True}
        file["train"].create_dataset("images", data=images, **how)
    assert np.array_equal(open_dataset(tiny).train.images, images)


# ── pickles ─────────────────────────────────────────────────────────────────────────────────────────────────
def laughs(levels, width):
    """A list of lists of lists, each of many times the one below: small, and not to be written out."""
    data = b"\x80\x02]q\x00"
    for _ in range(levels):
        data += b"](" + b"h\x00" * width + b"eq\x00"
    return data + b"."


TEXT = b"X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"q\x01"
BOMBS = {
    "lists of lists": laughs(6, 250),
    "a place of any number, for which room is made": b"\x80\x02K\x07r\xff\xff\xff\x7f.",
    "bytes that are only claimed": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
    "an array that is only claimed": b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".",
    "bytes by a number": b"c__builtin__\nbytes\n(I1000000000\ntR.",
    "bytes held many times": b"](B\x00\x10\x00\x00" + bytes(4096) + b"q\x01" + b"h\x01" * 200_000 + b"e.",
    "a text that doubles": b"(" + TEXT + b"h\x01" * 1_000 + b"l.",
    "a text encoded again and again": b"(" + TEXT + b"c_codecs\nencode\nq\x02" + b"h\x02h\x01\x85R" * 4000 + b"l.",
    "a tuple of the same tuple twice, whose hash takes 2^40 steps": b"})" + b"2\x86" * 40 + b"Ns.",
    "the same without an instruction that no pickler writes": b"})q\x00" + b"h\x00h\x00\x86q\x00" * 40 + b"Ns.",
    "a tuple in a tuple, whose hash leaves the stack": b"})" + b"\x85" * 1_000_000 + b"Ns.",
    "a text as arguments": TEXT + b"cnumpy.core.multiarray\n_reconstruct\nq\x02" + b"h\x02h\x01R" * 4000,
    "a value for every byte": b"(" + b"}" * (5 << 20) + b"l.",
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_pickle_takes_no_more_memory_and_time_than_its_bytes(what):
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    with pytest.raises(DataError, match=r"^batch "):
        cifar._read_batch(BOMBS[what], "batch", "labels")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss < 1 << 19  # KiB
    assert time.process_time() - began < 60


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02X\xff\xff\xff\xff.", b"\x8b\xff\xff\xff\x7f.", b"\x82\x01.", b"](K\x01e(K\x02K\x03uR.", b"]]a]R.",
        b"}K\x01b.", b"e.", b"s.", b"R.", b"b.", b"h\x01.", b"P1\n.", b"", b"hello",
        b"cnumpy\ndtype\n(S'u1'\ntR(NNtb.", b"cnumpy\ndtype\n(dS'_make'\nNsb.", b"cnumpy\nndarray\n]R}b.",
        b"cnumpy.core.multiarray\n_reconstruct\n(NS'x'\ntb.", b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        pickle.dumps(np.array([None])), pickle.dumps(np.zeros(2, "V8")), pickle.dumps(np.zeros(2, "M8[s]")),
        pickle.dumps({"data": np.arange(5, dtype="u1")}, 2)[:-20],
        pickle.dumps({(1,): 2}), pickle.dumps({"x" * 1000: 2}),
    ],
)  # fmt: skip
def test_other_pickles_are_refused(data):
    with pytest.raises(DataError, match=says("batch")):
        load_plain(data, "batch")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_values_of_every_size_and_kind_and_arrays_are_read(protocol):
    value = {
        "whole": [0, -1, 255, 256, 65536, 1 << 31, -(1 << 31), 1 << 80, True, False],
        "real": [0.0, -1.5, 1e300],
        "texts": ["", "é", "漢" * 100, "a" * 300, "line\nline\\", "'\""],
        "none": [None, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": {"b": []}}],
        "bytes": [b"", b"x", b"x" * 300, bytes(range(256)) * 300],
    }
    read = load_plain(pickle.dumps({**value, b"key": {"d": 1}}, protocol), "batch")
    assert read == {**value, "key": {"d": 1}}
    for array in (np.arange(6).reshape(2, 3).astype(dtype) for dtype in ("u1", ">i4", "i8", "f4", "bool")):
        for values in (array, np.asfortranarray(array)):
            read = load_plain(pickle.dumps({"x": values}, protocol), "batch")["x"]
            assert (read == array).all() and read.dtype == array.dtype and read.shape == (2, 3)
