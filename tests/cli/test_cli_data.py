"""ringtrain data, as a user types it."""

import re

import h5py
import numpy as np
import pytest

from tests.says import says

COMMAND = "data"


@pytest.fixture
def source(tmp_path):
    images = np.arange(240, dtype=np.uint8).reshape(10, 4, 6)
    np.savez(tmp_path / "some.npz", x=images, y=np.arange(10) % 3)
    return tmp_path / "some.npz"


def test_make_info_check_and_make_again_by_force(source, tmp_path, ringtrain):
    out = tmp_path / "o.h5"
    options = ("--name", "named", "--test-fraction", "0.3", "--seed", "4")
    text = f"{out}: named, 7 train, 3 test examples in 3 classes\n"
    assert ringtrain("make", source, "-o", out, *options)[:2] == (0, text)
    code, text, _ = ringtrain("info", out)
    assert code == 0
    for piece in ("named", "NumPy archive some.npz", "4x6x1", "train", "test", "sha256 train", "class"):
        assert piece in text
    with h5py.File(out) as file:
        assert f"sha256 file  {file.attrs['checksum']}" in text
        assert file["train"].attrs["checksum"] in text and f"{file.attrs['mean'][0]:.4f}" in text
    assert ringtrain("show", out)[1] == text
    assert ringtrain("check", out)[:2] == (0, f"{out} is good\n")
    code, _, complaint = ringtrain("make", source, "-o", out)
    assert code == 2 and re.search(says("--force"), complaint)
    assert ringtrain("make", source, "-o", out, "--force")[0] == 0


def test_targets_have_a_form_a_mean_and_a_deviation(tmp_path, ringtrain):
    x = np.ones((4, 9), np.float32)
    for y, form in ((np.float32([[0, 5]] * 2 + [[2, 5]] * 2), "2"), (np.ones((4, 2, 3), np.float32), "2x3")):
        np.savez(tmp_path / "r.npz", x=x, y=y)
        code, text, _ = ringtrain("info", tmp_path / "r.npz")
        assert code == 0 and f"targets  {form} float32" in text and "classes" not in text and "… 9 in all" in text
        assert ("  mean   1.0000  5.0000\n  std    1.0000  0.0000" in text) == (form == "2")
        assert ("  mean   1.0000  1.0000  1.0000\n" in text) == (form == "2x3")
        text = ringtrain("make", tmp_path / "r.npz", "-o", tmp_path / "r.h5", "--force")[1]
        assert f"4 train examples with {form} values each" in text


def test_check_lists_every_problem_and_exits_1(source, tmp_path, ringtrain):
    out = tmp_path / "o.h5"
    ringtrain("make", source, "-o", out)
    with h5py.File(out, "r+") as file:
        file["train/labels"][2] = 7
    code, _, complaint = ringtrain("check", out)
    assert code == 1 and f"{out} has 2 problems:\n" in complaint
    begins = [line[4:12] for line in complaint.splitlines()[1:]]
    assert begins == ["1 of 10 ", "the trai"]
    assert ringtrain("info", out)[0] == 2


def test_notes_of_a_reader_are_shown(tmp_path, ringtrain):
    image = pytest.importorskip("PIL.Image")
    for name, mode in (("a", "L"), ("b", "RGB")):
        (tmp_path / "f" / name).mkdir(parents=True)
        image.new(mode, (3, 5)).save(tmp_path / "f" / name / "1.png")
    code, text, _ = ringtrain("make", tmp_path / "f", "-o", tmp_path / "o.h5", "--size", "4x6")
    assert code == 0 and "note: 1 grey images among 2 became RGB\nnote: images were resized to 4x6" in text
    assert re.search(
        says("resized", "proportions"), ringtrain("make", tmp_path / "f", "-o", tmp_path / "p.h5", "--size", "4")[1]
    )


def test_a_context_is_of_any_file_and_at_least_a_byte(tmp_path, ringtrain):
    (tmp_path / "words").write_bytes(bytes(range(256)) * 2)
    code, text, _ = ringtrain("make", tmp_path / "words", "-o", tmp_path / "o.h5", "--context", "7")
    assert code == 0 and "words, 57 train, 7 test examples in 256 classes" in text
    code, _, complaint = ringtrain("make", tmp_path / "words", "-o", tmp_path / "p.h5", "--context", "0")
    assert code == 2 and says("--context", 0).matches(complaint)
    code, _, complaint = ringtrain("make", tmp_path / "words", "-o", tmp_path / "p.h5", "--context", "7", "--size", "4")
    assert code == 2 and says("--size", "leave it out").matches(complaint)


@pytest.mark.parametrize("size", ["0", "0x4", "4x", "x4", "4x4x4", "axb", "-1x3"])
def test_a_size_is_a_height_and_a_width(size, ringtrain):
    code, _, complaint = ringtrain("make", "x", "-o", "y", f"--size={size}")
    assert code == 2 and f"'{size}' is not a height and a width: write it as in 32x48" in complaint


def test_many_classes_are_summed_up_and_what_is_not_there_exits_2(tmp_path, ringtrain):
    np.savez(tmp_path / "a.npz", x=np.zeros((100, 2, 2), np.uint8), y=np.arange(100))
    ringtrain("make", tmp_path / "a.npz", "-o", tmp_path / "o.h5")
    _, text, _ = ringtrain("info", tmp_path / "o.h5")
    assert "and 80 more" in text and "1 … 1 each" in text and len(text.splitlines()) < 45
    for command in (("make", tmp_path / "no", "-o", tmp_path / "o.h5"), ("info", "no.h5"), ("check", "no.h5")):
        code, _, complaint = ringtrain(*command)
        assert code == 1 + (command[0] != "check") and complaint.count("ringtrain: ") == 1
