"""Every byte of a data set's file counts: what training uses is what was written, or the file is refused."""

import h5py
import pytest

from ringtrain.data.content import difference
from ringtrain.data.file import contents
from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.errors import DataError
from tests.says import says


def used(data):
    """All of a data set that training and evaluation use."""
    arrays = (
        data.mean,
        data.std,
        data.mean_image,
        *(a for _, split in data.splits() for a in (split.images, split.labels)),
    )
    return data.classes, [(array.shape, array.dtype.str, array.tobytes()) for array in arrays]


def test_a_flipped_byte_anywhere_is_refused_or_harms_nothing(tiny):
    whole, good = tiny.read_bytes(), used(open_dataset(tiny))
    for offset in range(0, len(whole), 41):
        bad = bytearray(whole)
        bad[offset] ^= 0x55
        tiny.write_bytes(bad)
        try:
            assert used(open_dataset(tiny)) == good
        except DataError as error:
            assert str(tiny) in str(error)


def test_a_flipped_bit_of_what_is_beside_the_examples_is_refused(tiny):
    """Of class names and statistics, each byte: its lowest bit, and its highest."""
    whole, data = tiny.read_bytes(), open_dataset(tiny)
    kept = [*(name.encode() for name in data.classes), *(a.tobytes() for a in (data.mean, data.std, data.mean_image))]
    for text in kept:
        assert whole.count(text) == 1
        for offset in range(whole.index(text), whole.index(text) + len(text)):
            for bit in (1, 0x80):
                bad = bytearray(whole)
                bad[offset] ^= bit
                tiny.write_bytes(bad)
                with pytest.raises(DataError, match=r"tiny\.h5[\s\S]*" + says("make", "data")):
                    open_dataset(tiny)


def test_a_large_set_is_verified_by_check_alone_but_for_the_checksum_of_its_statistics(tiny, monkeypatch):
    """Which an earlier ringtrain did not write."""
    monkeypatch.setattr(contents, "VERIFY_BYTES", 0)
    with h5py.File(tiny, "r+") as file:
        file["mean_image"][0, 0, 0] += 1
    with pytest.raises(DataError, match=says("std", "checksum")):
        open_dataset(tiny)
    assert len(check_file(tiny)) == 1
    with h5py.File(tiny, "r+") as file:
        del file.attrs["checksum"]
    open_dataset(tiny)
    with h5py.File(tiny, "r+") as file:
        file["test/images"][0, 0, 0, 0] ^= 1
    open_dataset(tiny)
    assert len(check_file(tiny)) == 1


def test_in_what_two_sets_differ():
    assert difference("a+b/c", "a+b/c") == difference("a+b", "a+b/c") == ""
    assert difference("a+b/c", "a+b/d") == says("c", "d")
    assert difference("a/c", "a+b/c") == difference("a", "a+b/c") == says("a", "a+b")
