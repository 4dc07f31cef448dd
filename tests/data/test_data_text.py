"""Text as windows of bytes: each label is the byte after its input, and the end of the text is the test part."""

import numpy as np
import pytest

from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.readers import text
from ringtrain.data.readers.make import make_dataset
from ringtrain.errors import DataError
from tests.says import says

BYTES = np.random.default_rng(7).integers(0, 256, 1000, np.uint8)


@pytest.mark.parametrize("cut", [1000, 333])
def test_windows_follow_one_another_and_the_last_are_the_test_part(tmp_path, cut):
    (tmp_path / "1.txt").write_bytes(BYTES[:cut].tobytes())
    (tmp_path / "2.txt").write_bytes(b"")
    (tmp_path / "3.txt").write_bytes(BYTES[cut:].tobytes())
    content = make_dataset(tmp_path / "*.txt", tmp_path / "o.h5", context=12, test_fraction=0.25)
    windows = BYTES[: 76 * 13].reshape(76, 13)
    opened = open_dataset(tmp_path / "o.h5")
    assert (opened.train.count, opened.test.count, len(opened.classes)) == (57, 19, 256)
    for part, wanted in ((opened.train, windows[:57]), (opened.test, windows[57:])):
        np.testing.assert_array_equal(part.images, wanted[:, :-1])
        np.testing.assert_array_equal(part.labels, wanted[:, 1:])
    assert says(12, 13).matches(content.notes[0]) and check_file(tmp_path / "o.h5") == []


def test_a_tenth_is_the_test_part_unless_said_and_any_file_is_text_with_a_context(tmp_path, monkeypatch):
    monkeypatch.setattr("ringtrain.data.stored.base.BLOCK_BYTES", 24)  # so that windows come in blocks of two
    (tmp_path / "notes.md").write_bytes(BYTES.tobytes())
    content = make_dataset(tmp_path / "notes.md", tmp_path / "o.h5", context=9)
    assert (content.name, content.notes, content.train.count, content.test.count) == ("notes", (), 90, 10)
    np.testing.assert_array_equal(open_dataset(tmp_path / "o.h5").test.images, BYTES.reshape(100, 10)[90:, :9])


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("a.txt", 0, (0, 258, "--context 128")),
        ("a.txt", 257, (257, 258)),
        ("b.txt", 999, ("b.txt", "not exist")),
        ("b*.txt", 999, ("no file matches",)),
    ],
)
def test_texts_that_are_too_short_or_not_there(tmp_path, name, size, words):
    (tmp_path / "a.txt").write_bytes(bytes(size))
    with pytest.raises(DataError, match=says(*words)):
        make_dataset(tmp_path / name, tmp_path / "o.h5")
    with pytest.raises(DataError, match=says("not a file")):
        make_dataset(tmp_path, tmp_path / "o.h5", context=text.CONTEXT)
