"""Data sets and pickles of someone who means harm: refused by name, nothing followed, nothing loaded, no room made."""

import os
import pickle
import re
import resource
import struct

import h5py
import numpy as np
import pytest

from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.layout import INPUT_TYPES
from ringtrain.data.readers import pickles
from ringtrain.data.readers.pickles import load_plain
from ringtrain.errors import DataError
from ringtrain.storage import hdf5
from tests.says import says


def images(**how):
    """The training images made anew, by other means."""

    def change(file):
        del file["train/images"]
        file["train"].create_dataset("images", **{"shape": (12, 4, 5, 3), "dtype": "u1", **how})

    return change


def foreign_filter(file):
    """Filter 32015, of which the library would look for code; optional, so that writing goes without."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((12, 4, 5, 3))
    plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1, 2))
    del file["train/images"]
    space = h5py.h5s.create_simple((12, 4, 5, 3))
    h5py.h5d.create(file["train"].id, b"images", h5py.h5t.STD_U8LE, space, plan)


def through_a_soft_link(file):
    del file["test"]
    file["out"] = h5py.ExternalLink("pipe", "/")
    file["test"] = h5py.SoftLink("/out/test")


def attribute(name, value, **how):
    return lambda file: file.attrs.create(name, value, **how)


HOSTILE = {
    "a soft link to an external one": (through_a_soft_link, says("'test'")),
    "an external link": (lambda f: [f.pop("test"), f.__setitem__("test", h5py.ExternalLink("pipe", "/"))], "'test'"),
    "a filter of others": (foreign_filter, "images " + says(32015, "filter", "gzip")),
    "a bomb of zeros": (
        images(shape=(1 << 20, 4, 5, 3), chunks=(512, 4, 5, 3), compression="gzip"),
        says("62,914,560"),
    ),
    "a shape of nothing": (
        images(shape=(1 << 40, 4, 5, 3), chunks=(1, 4, 5, 3)),
        says("0"),
    ),
    "chunks that take more memory than all of it": (
        images(data=np.ones((12, 4, 5, 3)), chunks=(300_000, 4, 5, 3), maxshape=(None, 4, 5, 3), compression="gzip"),
        says("18,000,000"),
    ),
    "a product that wraps around": (images(shape=(1 << 31, 1 << 31, 4, 1), chunks=(1, 1, 1, 1)), "claims"),
    "references": (
        images(dtype=h5py.ref_dtype),
        says("object", INPUT_TYPES),
    ),
    "regions": (
        images(dtype=h5py.regionref_dtype),
        says("object", INPUT_TYPES),
    ),
    "lists of any length": (
        images(dtype=h5py.vlen_dtype("u1")),
        says("object", INPUT_TYPES),
    ),
    "compounds": (images(dtype=[("a", "u1"), ("b", "f4")]), says(INPUT_TYPES)),
    "arrays in arrays": (images(dtype="(2,)u1"), says(INPUT_TYPES)),
    "a name that is a reference": (
        lambda f: attribute("name", f.ref, dtype=h5py.ref_dtype)(f),
        says("name"),
    ),
    "a name that moves the cursor": (
        attribute("name", "a\x1b[2J"),
        says("name", "'a\\x1b[2J'"),
    ),
    "a class in no encoding": (
        attribute("classes", [b"\xff", b"b"], dtype=h5py.string_dtype()),
        says("attribute", "list"),
    ),
    "a compound statistic": (
        attribute("mean", np.zeros(3, [("a", "f8")])),
        says("mean", "None"),
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_data_set_is_refused_by_name(tiny, what):
    os.mkfifo(tiny.parent / "pipe")  # whoever opened it would wait for ever
    change, message = HOSTILE[what]
    with h5py.File(tiny, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=message) as refusal:
        open_dataset(tiny)
    assert str(tiny) in str(refusal.value) and refusal.value.exit_code == 2
    assert check_file(tiny)


def test_no_plugin_is_looked_for(tiny):
    hdf5.open_file(tiny).close()
    assert h5py.h5pl.size() == 0


def test_a_pipe_is_no_data_set(tmp_path):
    os.mkfifo(tmp_path / "a.h5")
    with pytest.raises(DataError, match=says("a.h5")):
        open_dataset(tmp_path / "a.h5")


def test_gzip_and_others_of_the_library_are_read(tmp_path, tiny):
    with h5py.File(tiny, "r+") as file:
        held = file["train/images"][...]
        del file["train/images"]
        file["train"].create_dataset("images", data=held, chunks=True, compression="lzf", shuffle=True, fletcher32=True)
    assert np.array_equal(open_dataset(tiny).train.images, held)


# ── pickles ─────────────────────────────────────────────────────────────────────────────────────────────────
def laughs(levels, width):
    """A list of lists of lists, each of many times the one below: small, and not to be written out."""
    data = b"\x80\x02]q\x00"
    for _ in range(levels):
        data += b"](" + b"h\x00" * width + b"eq\x00"
    return data + b"."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (laughs(6, 250), "more than 1,048,576 values"),
        (b"\x80\x02X\xff\xff\xff\xff.", "truncated"),
        (b"\x8b\xff\xff\xff\x7f.", "truncated"),
        (b"\x82\x01.", "unregistered extension code 1"),
        (b"cnumpy\ndtype\n.", "TypeError"),
        (b"cnumpy\ndtype\n(S'u1'\ntR.", "TypeError"),
        (b"](K\x01e(K\x02K\x03uR.", "IndexError"),
        (b"]]a]R.", "TypeError"),
        (b"}K\x01b.", "AttributeError|UnpicklingError"),
        (b"(K\x01\x86.", "unexpected MARK found"),
        (b"e.", "could not find MARK"),
    ],
)
def test_pickles_that_want_too_much(data, message):
    with pytest.raises(DataError, match=says("batch")) as refusal:
        load_plain(data, "batch")
    assert re.search(message, str(refusal.value))


MEMORY_BOMBS = {
    "a place of any number, for which room is made": b"\x80\x02K\x07r\xff\xff\xff\x7f.",
    "bytes that are only claimed": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
    "bytes by a number": b"c__builtin__\nbytes\n(I1000000000\ntR.",
    "bytes held many times": b"](B\x00\x10\x00\x00" + bytes(4096) + b"q\x01" + b"h\x01" * 200_000 + b"e.",
    "a text that doubles": b"(X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"q\x01" + b"h\x01" * 1_000 + b"l.",
}


@pytest.mark.parametrize("what", MEMORY_BOMBS)
def test_a_pickle_that_takes_all_memory_is_refused(what, monkeypatch):
    monkeypatch.setattr(pickles, "PER_BYTE", 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=says("batch", f"{pickles.LEAST_BYTES:,}")):
        load_plain(MEMORY_BOMBS[what], "batch")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


def test_a_pickle_that_takes_all_time_is_refused(monkeypatch):
    """A tuple of the same tuple twice, forty times: its hash takes 2⁴⁰ steps."""
    monkeypatch.setattr(pickles, "CPU_S", 1)
    with pytest.raises(DataError, match=says("batch", "SIGXCPU", 1)):
        load_plain(b"})" + b"2\x86" * 40 + b"Ns.", "batch")


def test_a_pickle_that_crashes_the_unpickler_is_refused():
    """A tuple in a tuple, a million times: its hash leaves the stack."""
    with pytest.raises(DataError, match=says("batch", "SIGSEGV")):
        load_plain(b"})" + b"\x85" * 1_000_000 + b"Ns.", "batch")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_values_of_every_size_and_kind(protocol):
    value = {
        "whole": [0, -1, 255, 256, 65536, 1 << 31, -(1 << 31), 1 << 80, True, False],
        "real": [0.0, -1.5, 1e300],
        "texts": ["", "é", "漢" * 100, "a" * 300, "line\nline\\", "'\""],
        "none": [None, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": {"b": []}}],
    }
    read = load_plain(pickle.dumps(value, protocol), "batch")
    assert read["whole"] == value["whole"] and read["real"] == value["real"] and read["texts"] == value["texts"]
    assert read["none"] == [None, [], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], {}, {"a": {"b": []}}]
    for data in (b"", b"x", b"x" * 300, bytes(range(256)) * 300):
        assert load_plain(pickle.dumps([data], protocol), "batch") == [data]
