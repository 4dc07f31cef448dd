"""Sealed files of someone else, and run folders in which something else lies where files are wanted."""

import os
import re

import h5py
import numpy as np
import pytest

from ringtrain.errors import CheckpointError, UsageError
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder, find_checkpoint
from tests.data.data_makers import spoil_heap
from tests.says import says


def attribute(name, value, **how):
    return lambda file: (file.attrs.pop(name), file.attrs.create(name, value, **how))


def sealed(group, name, values):
    stored = group.create_dataset(name, data=values)
    stored.attrs["sha256"] = np.bytes_(store.array_digest(stored.name, stored[...]))


def text(name, value):
    return lambda file: (file["text"].pop(name), sealed(file["text"], name, np.frombuffer(value, "u1")))


def array(make_it):
    digest = np.bytes_(b"0" * 64)
    return lambda file: (file["weights"].pop("fc.bias"), make_it(file["weights"]).attrs.create("sha256", digest))


def through_a_soft_link(file):
    """A hard-looking path that leads through a soft link to an external one."""
    del file["weights/fc.bias"]
    file["out"] = h5py.ExternalLink("pipe", "/")
    file["weights/fc.bias"] = h5py.SoftLink("/out/x")


def one_array_by_many_names(file):
    for k in range(300):
        file["scalars"][f"s{k}"] = file["scalars/step"]


def committed_type(group):
    group["fc.bias"] = np.dtype("f4")
    return group["fc.bias"]


def replace_weights(make_link):
    return lambda file: (file.pop("weights"), file.__setitem__("weights", make_link()))


def region(file):
    file.attrs.create("epoch", file["weights/fc.bias"].regionref[:2], dtype=h5py.regionref_dtype)


def one_row_of_ranks(file):
    del file["ranks/examples"]
    sealed(file["ranks"], "examples", np.int64([1, 3]))


FC_BIAS = {  # by name: what is put in the place of an array
    "a group": lambda g: g.create_group("fc.bias"),
    "objects": lambda g: g.create_dataset("fc.bias", data=["a"], dtype=h5py.string_dtype()),
    "another file's bytes": lambda g: g.create_dataset("fc.bias", (8,), "u1", external=[("/etc/passwd", 0, 8)]),
    "another array's values": lambda g: g.create_virtual_dataset("fc.bias", h5py.VirtualLayout((5,), "f4")),
    "compressed zeros": lambda g: g.create_dataset("fc.bias", (1 << 40,), "f4", compression="gzip"),
    "claims": lambda g: g.create_dataset("fc.bias", (1 << 40,), "f4"),
    "a committed type": committed_type,
    "arrays in an array": lambda g: g.create_dataset("fc.bias", (5,), "(3,)f4"),
    "references": lambda g: g.create_dataset("fc.bias", (5,), h5py.ref_dtype),
    "opaque bytes": lambda g: g.create_dataset("fc.bias", (5,), "V4"),
    "complex numbers": lambda g: g.create_dataset("fc.bias", (5,), "c8"),
    "an empty space": lambda g: g.create_dataset("fc.bias", dtype="f4"),
    "a product that wraps around": lambda g: g.create_dataset("fc.bias", (1 << 31, 1 << 31, 4), "f4", chunks=(1, 1, 1)),
    "values that were never written": lambda g: g.create_dataset("fc.bias", (200,), "f4"),
}
ATTRIBUTES = {  # by name: an attribute and its value
    "a negative count": ("iteration", np.int64(-1)),
    "a count of more than there can be": ("epoch", np.uint64(1 << 63)),
    "many counts": ("epoch", np.zeros(5, "i8")),
    "a claim in an attribute": ("best", np.zeros(4000)),
    "no number for the best": ("best", np.float64(-7.0)),
}
HOSTILE = {
    **{what: (array(change), says("/weights/fc.bias")) for what, change in FC_BIAS.items()},
    **{what: (attribute(*each), says(each[0], f"{each[1]!r}")) for what, each in ATTRIBUTES.items()},
    "an external link": (replace_weights(lambda: h5py.ExternalLink("/etc/passwd", "/")), says("weights")),
    "a soft link": (replace_weights(lambda: h5py.SoftLink("/optimizer")), says("weights")),
    "no weights": (lambda file: file.pop("weights"), says("weights")),
    "an array for a group": (replace_weights(lambda: np.ones(3)), says("/weights")),
    "no digest": (lambda file: file["weights/fc.bias"].attrs.pop("sha256"), says("contents", "those")),
    "no iteration": (lambda file: file.attrs.pop("iteration"), says("contents", "those")),
    "a text more": (lambda file: file.move("text/config", "text/confog"), "(match|not those of a checkpoint)"),
    "no row for each rank": (one_row_of_ranks, says("a shape of /ranks")),
    "a weight less": (lambda file: file.pop("weights/fc.bias"), says("fingerprint", "weights")),
    "words for a number": (lambda file: file.attrs.create("iteration", "many"), says("contents", "those")),
    "a reference": (lambda f: f.attrs.create("epoch", f.ref, dtype=h5py.ref_dtype), says("epoch", "None")),
    "a region": (region, says("epoch", "None")),
    "a compound": (attribute("epoch", np.zeros((), [("a", "i8"), ("b", "f4")])), says("epoch", "None")),
    "a text of free length": (attribute("version", "0.1"), says("version of /", "'0.1'")),
    **{
        f"a {name} that moves the cursor": (text(name, b"mine \x1b]0;mine\x07"), says(name))
        for name in ("model_name", "data_name", "numerics")
    },
    "a name in no encoding": (text("data_name", b"\xff\xfe"), says("contents", "those")),
    "a soft link to an external one": (through_a_soft_link, says("/weights", "fc.bias")),
    "one array by many names": (one_array_by_many_names, "."),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused_by_name_and_nothing_is_followed(saved, reseal, what):
    os.mkfifo(saved.parent / "pipe")  # whoever opened it would wait for ever
    change, message = HOSTILE[what]
    reseal(saved, change)
    with pytest.raises(CheckpointError, match=message) as refusal:
        store.load_checkpoint(saved)
    assert str(saved) in str(refusal.value) and refusal.value.exit_code == 2


def test_a_damaged_heap_of_texts_under_a_good_seal_is_no_hang(saved, reseal):
    reseal(saved, attribute("version", "x", dtype=h5py.string_dtype()))
    content = bytearray(saved.read_bytes())
    heap = spoil_heap(content, "first length")
    saved.write_bytes(content)
    reseal(saved)
    with pytest.raises(CheckpointError, match=rf"{saved} .*byte {heap} "):
        store.load_checkpoint(saved)


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "..", "a/../../b", "%2F..%2F", "\\..\\x", "~/x"])
def test_names_of_parameters_are_nothing_but_names(tmp_path, make, equal, name):
    checkpoint = make(optimizer={"slot": {name: np.ones(2, np.float32)}})
    store.save_checkpoint(tmp_path / "a.h5", checkpoint)
    assert equal(store.load_checkpoint(tmp_path / "a.h5"), checkpoint) and os.listdir(tmp_path) == ["a.h5"]


def test_a_state_that_no_run_goes_on_from_is_named(make):
    weights = make().weights
    with pytest.raises(CheckpointError, match=says("'slot'")):
        store.check_resumable(make(optimizer={"slot": {"fc.bias": weights["fc.bias"]}}), (), "x.h5")
    with pytest.raises(CheckpointError, match=says("epoch_loss")):
        store.check_resumable(make(), ("step", "epoch_loss"), "x.h5")
    store.check_resumable(make(), ("step",), "x.h5")


@pytest.fixture
def folder(tmp_path, make):
    run = create_run_folder(str(tmp_path / "run"), "m", None, resume=False)
    for iteration in (1, 2):
        run.save(make(iteration), keep=2, is_best=iteration == 1)
    yield run
    run.release()


def test_a_link_to_nothing_and_a_pipe_are_passed_over_and_named(folder):
    (folder.checkpoints / "iteration-00000004.h5").symlink_to("nowhere")
    os.mkfifo(folder.checkpoints / "iteration-00000003.h5")
    latest = folder.latest()
    assert latest.checkpoint.iteration == 2
    assert latest.skipped[0] == says(folder.numbered(4), "link") and says(folder.numbered(3)).matches(latest.skipped[1])
    assert [path.name for path in folder.supersede(2)] == [
        "superseded-iteration-00000004.h5",
        "superseded-iteration-00000003.h5",
    ]


def test_a_renamed_one_is_not_the_newest(folder, make):
    folder.numbered(2).rename(folder.numbered(99))
    latest = folder.latest()
    assert latest.checkpoint.iteration == 1
    assert re.search(says(folder.numbered(99), 2), latest.skipped[0])
    assert find_checkpoint(folder.numbered(99)).checkpoint.iteration == 2  # asked for by name


def test_what_was_put_aside_before_makes_room_for_a_file_alone(folder):
    for _ in range(2):
        (folder.checkpoints / "iteration-00000009.h5").mkdir()
        folder.supersede(2)
    (folder.checkpoints / "iteration-00000009.h5").write_text("")
    folder.supersede(2)
    aside = sorted(path.name for path in folder.checkpoints.glob("superseded-*9.h5"))
    assert aside == [f"superseded-{k}iteration-00000009.h5" for k in ("2-", "3-", "")]


def test_a_folder_is_claimed_once(folder):
    folder.claim(resume=True)
    with pytest.raises(UsageError, match=says("--out", folder.path)):
        RunFolder(folder.path).claim(resume=True)
    with pytest.raises(UsageError, match=says("--out", folder.path)):
        RunFolder(folder.path).check_idle()
    folder.release()
    RunFolder(folder.path).check_idle()
    # Two that began at once, and one was faster.
    with pytest.raises(UsageError, match=says("--resume", "--out", folder.path)):
        RunFolder(folder.path).claim(resume=False)


def test_a_folder_that_may_not_be_looked_into_is_not_empty(forbidden_folder):
    os.seteuid(os.getuid())
    (forbidden_folder / "checkpoints").mkdir(mode=0o000)
    os.seteuid(65534 if os.getuid() == 0 else os.getuid())
    with pytest.raises(PermissionError):
        RunFolder(forbidden_folder).is_empty()
