"""Folders of images and tar shards as data sets: found by their headers, read at their offsets."""

import tarfile

import numpy as np
import pytest
from data_makers import read_rows
from image_makers import bad_files, bad_folder, encoded, labelled, pixels, shards, tar

from ringtrain.data.batches.gather import Changes, Gather
from ringtrain.data.batches.pictures import View
from ringtrain.data.batches.sampler import EvenParts, Sampler
from ringtrain.data.batches.transforms import RandomResizedCrop, Transform
from ringtrain.data.image_files.check import check_share
from ringtrain.data.image_files.index import alone
from ringtrain.data.image_files.open import SAMPLE, accepts, open_images, open_parts
from ringtrain.data.image_files.shards import shards_of
from ringtrain.data.images import decode_image
from ringtrain.errors import DataError
from tests.says import says

VIEW = View((16, 16))
IMAGE = encoded(pixels(20, 20))
GOOD = [("1.png", IMAGE), ("1.cls", b"0")]


def opened(path, **more):
    return open_images(str(path), VIEW, 3, **more)


def test_members_with_one_stem_are_examples(tmp_path):
    data = opened(shards(tmp_path))
    members = dict(member for number in (0, 1) for member in labelled(12 * number, 12))
    assert (data.train.count, data.test, data.classes, data.location) == (24, None, ("0", "1", "2"), "files")
    assert data.train.shape == (16, 16, 3)
    images, labels = read_rows(data.train, [13, 0, 23])
    assert labels.tolist() == [1, 0, 2]
    for row, number in enumerate((13, 0, 23)):
        assert (images[row] == VIEW.of(decode_image(members[f"{number:04}.jpg"], "", 3))).all()
    whole = np.stack([VIEW.of(decode_image(members[f"{n:04}.jpg"], "", 3)) for n in range(24)]).astype(float)
    assert SAMPLE >= 24
    assert np.allclose(data.mean, whole.mean(axis=(0, 1, 2))) and np.allclose(data.std, whole.std(axis=(0, 1, 2)))
    assert np.allclose(data.mean_image, whole.mean(axis=0))


def test_labels_may_be_json_members_lie_in_any_order_and_pax_names_are_read(tmp_path):
    members = [("b.json", b'{"label": 4, "id": "x"}'), ("a.png", IMAGE), ("b.png", IMAGE), ("a.txt", b"a rose")]
    tar(tmp_path / "one.tar", [*members, ("a.json", b'{"label": 2}')])
    data = opened(tmp_path / "one.tar")
    assert (data.train.labels.tolist(), data.classes) == ([2, 4], tuple("01234"))
    name = f"{'long' * 60}/é.png"
    tar(tmp_path / "a.tar", [(name, IMAGE)], format=tarfile.PAX_FORMAT)
    data = opened(tmp_path / "a.tar")
    assert data.classes == ("long" * 60,) and name in data.train.where(0)
    assert (data.train.image(0) == pixels(20, 20)).all()


def test_cls_goes_before_json_and_a_json_without_a_label_before_the_folder(tmp_path):
    about = [("a/1.json", b'{"width": 5}'), ("a/1.png", IMAGE), ("b/2.json", b"{}"), ("b/2.png", IMAGE)]
    tar(tmp_path / "f.tar", about)
    assert opened(tmp_path / "f.tar").classes == ("a", "b")
    tar(
        tmp_path / "s.tar",
        [*about, ("a/1.cls", b"3"), ("b/2.cls", b"1"), ("3.json", b'{"label": 2}'), ("3.png", IMAGE)],
    )
    data = opened(tmp_path / "s.tar")
    assert (data.train.labels.tolist(), data.notes) == ([3, 1, 2], ())


def test_folders_of_members_are_classes_and_a_file_beside_the_shards_names_them(tmp_path):
    tar(tmp_path / "a-1.tar", [("x/tulip/1.png", IMAGE), ("x/rose/2.png", IMAGE)])
    tar(tmp_path / "a-2.tar", [("x/aster/1.png", IMAGE), ("x/rose/3.PNG", IMAGE)])
    data = opened(tmp_path / "a-*.tar")
    assert (data.classes, data.train.labels.tolist()) == (("aster", "rose", "tulip"), [2, 1, 0, 1])
    (tmp_path / "classes.txt").write_text("tulip\nrose\naster\nlily\n")
    data = opened(tmp_path / "a-*.tar")
    assert (data.classes, data.train.labels.tolist()) == (("tulip", "rose", "aster", "lily"), [0, 1, 2, 1])
    (tmp_path / "classes.txt").write_text("tulip\nrose\n")
    with pytest.raises(DataError, match=says("'aster'", "classes.txt")):
        opened(tmp_path / "a-*.tar")


def test_a_folder_has_a_part_to_test_with(tmp_path):
    for part, name, count in (("train", "rose", 3), ("train", "tulip", 2), ("val", "tulip", 2)):
        folder = tmp_path / part / name
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.png").write_bytes(encoded(pixels(20, 30, seed=number)))
    data = opened(tmp_path)
    assert (data.classes, data.train.labels.tolist()) == (("rose", "tulip"), [0, 0, 0, 1, 1])
    assert data.test.labels.tolist() == [1, 1]
    images, _ = read_rows(data.test, [1])
    assert (images[0] == VIEW.of(pixels(20, 30, seed=1))).all()
    assert data.train.image(2).shape == (20, 30, 3)
    with pytest.raises(DataError, match=says("2.png", 3)):
        (tmp_path / "train" / "rose" / "2.png").write_bytes(b"abc")
        data.train.image(2)


def test_a_part_to_test_with_has_the_classes_of_training(tmp_path):
    tar(tmp_path / "val.tar", [("rose/2.png", IMAGE), ("lily/1.png", IMAGE)])
    part = open_parts(str(tmp_path / "val.tar"), VIEW, 3, 1, alone, False, ("lily", "aster", "rose"))[0]["train"]
    assert part.labels.tolist() == [2, 0]
    with pytest.raises(DataError, match=says("'lily'", "the training part")):
        open_parts(str(tmp_path / "val.tar"), VIEW, 3, 1, alone, False, ("aster", "rose"))[0]["train"]
    for name in ("rose", "lily"):
        (tmp_path / "val" / name).mkdir(parents=True)
        (tmp_path / "val" / name / "1.png").write_bytes(IMAGE)
    part = open_parts(str(tmp_path / "val"), VIEW, 3, 1, alone, False, ("rose", "aster", "lily"))[0]["train"]
    assert part.labels.tolist() == [2, 0]
    with pytest.raises(DataError, match=says("lily", "0, 1", "classes.txt")):
        open_parts(str(tmp_path / "val"), VIEW, 3, 1, alone, False, ("0", "1"))


def test_the_checksum_is_of_names_sizes_and_labels(tmp_path):
    first = opened(shards(tmp_path)).checksum
    again = tmp_path / "again"
    again.mkdir()
    assert opened(shards(again)).checksum == first
    tar(
        again / "train-001.tar",
        [*labelled(12, 11), ("0023.jpg", encoded(pixels(22, 27, 23), "JPEG")), ("0023.cls", b"1")],
    )
    assert opened(again / "train-{000..001}.tar").train.checksum != opened(tmp_path / "train-*.tar").train.checksum


def test_work_that_is_divided_gives_the_same(tmp_path):
    pattern, turns = shards(tmp_path, 3, 6), []

    def backwards(count, work):
        turns.append(count)
        return [work(number) for number in reversed(range(count))][::-1]

    one, other = opened(pattern), opened(pattern, divide=backwards)
    assert turns == [3, 1]
    assert one.checksum == other.checksum


def test_patterns_name_shards_in_their_order(tmp_path):
    for name in ("a-08.tar", "a-09.tar", "a-10.tar"):
        (tmp_path / name).touch()
    for pattern in ("a-{08..10}.tar", "a-*.tar", "a-[01]?.tar"):
        assert [path[-8:] for path in shards_of(str(tmp_path / pattern))] == ["a-08.tar", "a-09.tar", "a-10.tar"]
    for pattern, text in (
        ("a-{08..11}.tar", says(tmp_path / "a-11.tar")),
        ("a-{3..1}.tar", says("FIRST", "LAST")),
        ("b-*.tar", says("matches", "quotes")),
        ("a.tar.gz", says("gunzip", "zstd")),
    ):
        assert accepts(str(tmp_path / pattern))
        with pytest.raises(DataError, match=text):
            shards_of(str(tmp_path / pattern))


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("1.png", IMAGE), ("2.png", IMAGE), ("2.cls", b"0")], says("1.png", "1")),
        ([*GOOD, ("1.cls", b"0")], says("1.cls", 2560)),
        ([("22.0.png", IMAGE), ("22.0.cls", b"0"), ("22.1.png", IMAGE)], says("22.1.png", "22", "first dot")),
        ([*GOOD, ("1.jpg", IMAGE)], says("1.jpg", "1")),
        ([*GOOD, ("2.cls", b"0")], says("2.cls")),
        ([("1.png", IMAGE), ("1.cls", b"rose")], says("1.cls")),
        ([("1.png", IMAGE), ("1.cls", b"-2")], says("1.cls")),
        ([("1.png", IMAGE), ("1.json", b"{")], says("1.json")),
        ([("1.png", IMAGE), ("1.json", b"[" * 9999)], says("1.json")),
        ([("1.png", IMAGE), ("1.json", b'{"class": 1}')], says("has", "label")),
        ([("1.png", IMAGE), ("1.cls", b"0" * (2 << 20))], says("1.cls")),
        ([("a/1.png", IMAGE), ("a/notes.doc", b"")], says("a/notes.doc")),
        ([("a/1.png", IMAGE), ("2.png", IMAGE)], says("2.png")),
        ([("1.cls", b"0")], says("has", "images")),
        ([("a/1.png", b"no image")], says("could", "image")),
    ],
)  # fmt: skip
def test_a_member_that_is_wrong_is_named(tmp_path, members, text):
    tar(tmp_path / "bad.tar", members)
    with pytest.raises(DataError, match=says(tmp_path / "bad.tar", text)):
        opened(tmp_path / "bad.tar")


def member(end=2048, **fields):
    info = tarfile.TarInfo("a/1.png")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(end)


DAMAGED = {  # what may happen to a tar, by name: its bytes, of the whole and the second member's offset; a text
    "cut in a header": (lambda whole, at: whole[: at + 100], says(1536)),
    "cut in a member": (lambda whole, at: whole[: at + 600], says("a/2.png", 1536)),
    "cut between members": (lambda whole, at: whole[:at], says(1536)),
    "a header is changed": (lambda whole, at: whole[: at + 5] + b"?" + whole[at + 6 :], says(1536)),
    "two in one": (lambda whole, at: whole + whole, says("members", "archives")),
    "zeros": (lambda whole, at: bytes(5000), says("has", "images")),
    "nothing": (lambda whole, at: b"", says(0, "tar", "archive")),
    "no tar": (lambda whole, at: IMAGE * 3, says(0, "tar", "archive")),
    **{
        f"type {kind}": (
            lambda whole, at, kind=kind: member(1024, type=kind, linkname="/etc/passwd"),
            says("a/1.png", 0),
        )
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    },
    "a size below 0": (lambda whole, at: member(size=-512), says("archive")),
    "a size of all": (lambda whole, at: member(size=1 << 60), says("archive")),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_shard_is_refused_by_name(tmp_path, what):
    change, text = DAMAGED[what]
    _, offset, _ = tar(tmp_path / "a.tar", [("a/1.png", IMAGE), ("a/2.png", IMAGE), ("a/3.png", IMAGE)])
    (tmp_path / "a.tar").write_bytes(change((tmp_path / "a.tar").read_bytes(), offset))
    with pytest.raises(DataError, match=says(tmp_path / "a.tar", text)):
        opened(tmp_path / "a.tar")


def test_any_changed_byte_gives_a_data_set_or_a_clear_error(tmp_path):
    offsets = tar(tmp_path / "good.tar", [("a/1.png", IMAGE), ("b/2.png", IMAGE)])
    whole, random = (tmp_path / "good.tar").read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole)
        for offset in offsets:
            data[offset + int(random.integers(512))] = int(random.integers(256))
        (tmp_path / "bad.tar").write_bytes(data)
        try:
            assert opened(tmp_path / "bad.tar").train.count <= 2
        except DataError as error:
            assert "bad.tar" in str(error)


def epoch_of(split, parts, transform, seed=5):
    """The images and labels of an epoch, in order, read in parts."""
    rows = []
    for part in range(parts):
        gather = Gather(split, Sampler(split.count, split.count, 3), EvenParts(parts), Changes(transform), seed)
        batch = gather.fill(gather.slot(), 0, part)
        gather.close()
        rows += zip(batch.images, batch.labels, strict=True)
    return [np.stack(each) for each in zip(*rows, strict=True)]


def test_bad_images_are_replaced_by_key_in_training_and_left_out_of_evaluations(tmp_path):
    bad = bad_folder(tmp_path / "d")
    with pytest.raises(DataError, match=says("gone.png", "--bad-images")):
        opened(tmp_path / "d")
    data = opened(tmp_path / "d", threads=2, skip=True)
    split, paths = data.train, [data.train.where(example) for example in range(data.train.count)]
    images, labels = read_rows(split, np.arange(split.count))
    unread = [path in bad for path in paths]
    assert sorted(paths[example] for example in split.problems) == bad and not images[unread].any()
    assert (labels[unread] == -1).all() and (np.delete(labels, np.flatnonzero(unread)) >= 0).all()
    good = {(image.tobytes(), label) for image, label in zip(images, labels, strict=True) if label >= 0}
    assert len(good) == split.count - len(bad)
    seen, seen_labels = epoch_of(split, 1, Transform())
    assert {(image.tobytes(), label) for image, label in zip(seen, seen_labels, strict=True)} == good
    for transform in (Transform(), Transform(RandomResizedCrop(16, 16))):
        first = epoch_of(opened(tmp_path / "d", skip=True).train, 1, transform)
        for one, other in zip(first, epoch_of(split, 3, transform), strict=True):
            assert (one == other).all()
    assert (epoch_of(split, 1, Transform(), seed=6)[0] != seen).any()
    assert opened(tmp_path / "d", skip=True).mean.tolist() == data.mean.tolist()
    tar(tmp_path / "all.tar", [(f"a/{name}", data) for name, data in bad_files()])
    with pytest.raises(DataError, match=says(tmp_path / "all.tar", "100", "replace")):
        opened(tmp_path / "all.tar", skip=True)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_shares_of_a_check_name_every_bad_file(tmp_path, turns):
    bad = bad_folder(tmp_path / "d")
    for number in range(4):
        tar(tmp_path / f"{number}.tar", [("a/1.png", IMAGE), *((f"b/{name}", data) for name, data in bad_files())])
        np.savez(tmp_path / f"{number}.npz", x=np.zeros((9, 2, 2), np.uint8), y=np.arange(9))
    (tmp_path / "1.tar").write_bytes((tmp_path / "1.tar").read_bytes()[:1000])
    (tmp_path / "2.npz").write_bytes((tmp_path / "2.npz").read_bytes()[:-90])
    members = [f"{tmp_path}/{number}.tar: member b/{name} " for number in (0, 2, 3) for name, _ in bad_files()]
    for text, wanted in (
        (tmp_path / "d", bad),
        (tmp_path / "{0..3}.tar", [f"{tmp_path}/1.tar: member a/1.png ", *members]),
        (tmp_path / "*.npz", [f"{tmp_path}/2.npz"]),
        (f"{tmp_path}/*.npz:x,y", [f"{tmp_path}/2.npz"]),
        (tmp_path / "{0..4}.tar", ["there is no "]),
    ):
        shares = [check_share(str(text), turn=turn, turns=turns) for turn in range(turns)]
        problems = [problem for _, problem in sorted({each for share in shares for each in share[0]})]
        assert len(problems) == len(wanted) and not any(" at 0x" in problem for problem in problems)
        assert all(problem.startswith(begin) for problem, begin in zip(problems, wanted, strict=True)), problems
