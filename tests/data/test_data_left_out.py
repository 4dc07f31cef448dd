"""Folders of images as people have them: nested, linked, with other files: what is taken is the same for training,
`data make`, `data info` and predictions, and what is not is counted and named."""

import os
import re
import shutil

import numpy as np
import pytest
from image_makers import encoded, tar

from ringtrain.cli.main import run
from ringtrain.data.batches.pictures import View
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.image_files.index import alone
from ringtrain.data.image_files.open import open_images, open_parts
from ringtrain.data.inputs import list_inputs
from ringtrain.data.readers import folder as folders
from ringtrain.data.readers.make import make_dataset
from ringtrain.errors import DataError
from tests.says import says

VIEW = View((1, 1))
IMAGE = encoded(np.zeros((2, 2, 3), np.uint8))
TRAIN, TEST = ("train", "Training", "TRAIN"), ("test", "val", "valid", "Validation", "testing")


class Tree:
    """A folder that a seed makes. ``images``: (path, number of the image) of those that are taken, ``others``: paths of
    what is left out; each as a path in the folder."""

    def __init__(self, root, seed):
        self.root, self.random, self.count = root, np.random.default_rng(seed), 0
        self.images, self.others, self.outside = {}, [], root.parent / f"{root.name} outside"
        root.mkdir()
        self.outside.mkdir()

    def image(self, path):
        self.count += 1
        path.write_bytes(encoded(np.array([[[self.count % 256, self.count // 256, 7]]], np.uint8)))
        return self.count

    def class_folder(self, path, depth=0):
        """Fill a folder with at least one image."""
        path.mkdir(parents=True)
        self._take(path / "0.png", self.image(path / "0.png"))
        for number in range(1, int(self.random.integers(2, 7))):
            kinds = [name for name in dir(self) if name.startswith("add_") and (depth < 2 or name != "add_folder")]
            getattr(self, kinds[int(self.random.integers(len(kinds)))])(path, number, depth)

    def _take(self, path, image):
        self.images[os.path.relpath(path, self.root)] = image

    def _leave(self, path):
        self.others.append(os.path.relpath(path, self.root))

    def add_image(self, path, number, depth):
        file = path / f"{number}.PNG"
        self._take(file, self.image(file))

    def add_folder(self, path, number, depth):
        self.class_folder(path / f"{number} folder.png", depth + 1)

    def add_text(self, path, number, depth):
        (path / f"{number}.txt").write_text("x")
        self._leave(path / f"{number}.txt")

    def add_hidden(self, path, number, depth):
        (path / f".{number}.png").write_bytes(b"")
        (path / f".{number}").mkdir()

    def add_pipe(self, path, number, depth):
        os.mkfifo(path / f"{number}.png")
        self._leave(path / f"{number}.png")

    def add_link(self, path, number, depth):
        target = self.outside / f"{self.count}.png"
        self._take(path / f"{number}.png", self.image(target))
        os.symlink(target, path / f"{number}.png")

    def add_linked_folder(self, path, number, depth):
        target = self.outside / f"{self.count} folder" / "in"
        target.mkdir(parents=True)
        self._take(path / f"{number}" / "in" / "a.png", self.image(target / "a.png"))
        os.symlink(path, target / "back")  # to a folder that the walk is in
        self._leave(path / f"{number}" / "in" / "back")
        os.symlink(target.parent, path / f"{number}")

    def add_ring(self, path, number, depth):
        target = ("..", ".", "../..", str(self.root.parent))[number % 4]
        os.symlink(target, path / f"{number}")
        self._leave(path / f"{number}")

    def add_link_to_nowhere(self, path, number, depth):
        os.symlink(("nowhere", f"{number}.lost")[number % 2], path / f"{number}.lost")
        self._leave(path / f"{number}.lost")


def tree(root, seed):
    """(the tree, paths of its classes in the training part, in the test part)"""
    root_tree = Tree(root, seed)
    classes = [f"class {number}" for number in range(1 + seed % 3)]
    parts = [""] if seed % 2 else [TRAIN[seed % 3], TEST[seed % 5]]
    for part in parts:
        for name in classes:
            root_tree.class_folder(root / part / name)
        if part:
            (root / part / "beside.txt").write_text("x")
            root_tree.others.append(f"{part}/beside.txt")
    for name in ("readme.md", "1.jpg"):
        (root / name).write_text("x")
        root_tree.others.append(name)
    return root_tree, [os.path.join(part, "") if part else "" for part in parts]


def by_parts(path):
    return path.split("/")


def number_of(image):
    """The number that an image has, by its one pixel."""
    return int(image[0, 0, 0]) + 256 * int(image[0, 0, 1])


def found_in(split, root):
    """The files of a split, as paths in the folder, in order."""
    return [os.path.relpath(split.where(number), root) for number in range(split.count)]


@pytest.mark.parametrize("seed", range(100))
def test_all_take_the_same_and_name_the_rest(tmp_path, seed):
    files, parts = tree(tmp_path / "d", seed)
    wanted = [sorted((path for path in files.images if path.startswith(part)), key=by_parts) for part in parts]
    note = re.compile(says(len(files.others)))
    data = open_images(str(files.root), VIEW, 3)
    splits = [split for _, split in data.splits()]
    assert [found_in(split, files.root) for split in splits] == wanted
    for split, part in zip(splits, parts, strict=True):
        names = [path.removeprefix(part).split("/")[0] for path in found_in(split, files.root)]
        assert [data.classes[label] for label in split.labels] == names
    content = make_dataset(files.root, tmp_path / "o.h5")
    for notes in (data.notes, content.notes):
        assert len(notes) == 1 and note.match(notes[0])
        assert notes[0].split(": ", 1)[1].removesuffix(", …") in {str(files.root / other) for other in files.others}
    for (_, split), paths in zip(open_dataset(tmp_path / "o.h5").splits(), wanted, strict=True):
        assert [number_of(image) for image in split.images] == [files.images[path] for path in paths]
    (files.root / "1.jpg").unlink()  # an image, for predictions
    ((_, inputs),), notes = list_inputs([str(files.root)])
    assert [os.path.relpath(path, files.root) for path in inputs] == sorted(files.images, key=by_parts)
    assert re.match(says(len(files.others) - 1), notes[0])


def test_a_broken_link_to_an_image_is_named_everywhere(tmp_path, capfd):
    for number in range(3):
        (tmp_path / "d" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / "a" / f"{number}.png").write_bytes(IMAGE)
    link = tmp_path / "d" / "a" / "9.png"
    os.symlink("gone/9.png", link)
    named = says(tmp_path / "d" / "a", 1, link)
    for read in (
        lambda: open_images(str(tmp_path / "d"), VIEW, 3),
        lambda: open_parts(str(tmp_path / "d"), VIEW, 3, 1, alone, False, ("a",))[0]["train"],
        lambda: make_dataset(tmp_path / "d", tmp_path / "o.h5"),
    ):
        with pytest.raises(DataError, match=named):
            read()
    for command in ("info", "check"):
        assert run(["data", command, str(tmp_path / "d")]) == 1
        assert f"- {link} could not be read: No such file" in capfd.readouterr().err
    ((_, paths),), _ = list_inputs([str(tmp_path / "d")])
    assert str(link) in paths  # a line of its own says why it is not read


def test_two_folders_of_one_part_and_a_test_part_alone_are_refused(tmp_path):
    for name in ("train", "Validation", "test", "Training"):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "1.png").write_bytes(IMAGE)
    for one, other, part in (("Training", "train", "train"), ("Validation", "test", "test")):
        with pytest.raises(DataError, match=says(tmp_path, one, other, part)):
            folders.parts_of(tmp_path)
        shutil.rmtree(tmp_path / one)
    assert folders.parts_of(tmp_path) == {"train": tmp_path / "train", "test": tmp_path / "test"}
    shutil.rmtree(tmp_path / "test" / "a")
    for read in (folders.parts_of, lambda path: open_images(str(path), VIEW, 3)):
        with pytest.raises(DataError, match=says(tmp_path / "test", "classes")):
            read(tmp_path)
    (tmp_path / "test" / "a").mkdir()
    (tmp_path / "train").rename(tmp_path / "first")
    with pytest.raises(DataError, match=says(tmp_path, "test")):
        folders.parts_of(tmp_path)


def test_linked_folders_that_lead_to_each_other_end(tmp_path):
    for name in "abcd":
        (tmp_path / "d" / name).mkdir(parents=True)
        (tmp_path / "d" / name / "1.png").write_bytes(IMAGE)
        for other in "abcd":
            os.symlink(tmp_path / "d" / other, tmp_path / "d" / name / f"to {other}")
    split = open_images(str(tmp_path / "d"), VIEW, 3).train
    ((_, paths),), _ = list_inputs([str(tmp_path / "d")])
    assert found_in(split, tmp_path) == [os.path.relpath(path, tmp_path) for path in paths] and split.count < 200
    deep = tmp_path / "e" / "a"
    os.makedirs(deep / "/".join("x" * 90))
    (deep / "1.png").write_bytes(IMAGE)
    assert open_images(str(tmp_path / "e"), VIEW, 3).notes


def test_members_and_arrays_beside_inputs_and_labels_are_counted(tmp_path, capfd):
    for shard in "ab":
        members = [("1.png", IMAGE), ("1.cls", b"0"), ("1.txt", b"a rose"), ("2.png", IMAGE), ("2.cls", b"1")]
        tar(tmp_path / f"{shard}.tar", [*members, ("notes.md", b"")])
    (note,) = open_images(str(tmp_path / "[ab].tar"), VIEW, 3).notes
    assert re.match(says(4, f"{tmp_path}/a.tar: member 1.txt at byte 2048"), note)
    x, y = np.zeros((4, 2, 2), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_val=x, y_val=y)
    note = says(tmp_path / "a.npz", 2, "x_val")
    assert open_dataset(tmp_path / "a.npz").notes == (note,)
    assert make_dataset(tmp_path / "a.npz", tmp_path / "o.h5").notes == (note,)
    assert run(["data", "info", str(tmp_path / "a.npz")]) == 0 and note.matches(capfd.readouterr().out)
    assert not open_dataset(f"{tmp_path}/a.npz:x_val,y_val").notes and not open_dataset(tmp_path / "o.h5").notes


def test_info_and_check_take_image_files(tmp_path, capfd):
    for name in ("rose", "tulip"):
        (tmp_path / "d" / name / "wild").mkdir(parents=True)
        for number in range(3):
            image = encoded(np.full((4, 5 + number, 3), 10 * number, np.uint8), "PNG" if number else "JPEG")
            (tmp_path / "d" / name / "wild" / f"{number}.png").write_bytes(image)
    (tmp_path / "d" / "readme").write_text("x")
    assert run(["data", "info", str(tmp_path / "d")]) == 0
    shown = capfd.readouterr().out
    for text in ("note: 1 files or folders", "readme", "rose", "files", "sha256 train"):
        assert text in shown
    assert run(["data", "check", str(tmp_path / "d")]) == 0
    shown = capfd.readouterr().out
    assert "is good" in shown and "readme" in shown
    bad = tmp_path / "d" / "rose" / "wild" / "1.png"
    bad.write_bytes(bad.read_bytes()[:-30])
    for command in ("info", "check"):
        assert run(["data", command, str(tmp_path / "d")]) == 1
        assert f"- {bad} could not be read as an image" in capfd.readouterr().err
