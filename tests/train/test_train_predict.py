"""Predictions of a trained model: on files, folders and arrays, and in a program of one's own."""

import json
import os
import subprocess
import sys
from csv import DictReader
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from small_runs import DROPOUT_NET, on_ranks

import ringtrain
from ringtrain.data import predictions
from ringtrain.data.content import Content, memory_part
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.write import write_dataset
from ringtrain.data.images import StoredPicture
from ringtrain.data.inputs import centre_of
from ringtrain.errors import CheckpointError, DataError, ModelError, OutputClosed
from ringtrain.nn.losses import MeanSquaredError
from ringtrain.storage.checkpoint import store
from ringtrain.train.load import load, load_model, score_of
from ringtrain.train.predict import of_data, of_inputs, write_predictions
from tests.says import says

NAMES = ("zero", 'a "one"', *map(str, range(2, 9)), "neun ü")
ROWS_NET = """
input = {{ shape = [8, 8], mean = "{mean}", scale = 0.1 }}
layers = [
  {{ name = "rows", kind = "Linear", units = 4 }},
  {{ name = "flat", kind = "Flatten" }},
  {{ name = "out", kind = "Linear", units = 10 }},
]
[recipe]
lr = 0.01
"""
ROOT = Path(ringtrain.__file__).parents[1]


@pytest.fixture
def digits():
    return open_dataset("digits").test


@pytest.fixture
def run(train, digits):
    """A run whose data have names of classes, and are gone."""
    digits = memory_part(digits.images[:200], digits.labels[:200])
    write_dataset("named.h5", Content("named", digits, None, NAMES, "digits"))
    train(out="run", data="named.h5", batch=8, iterations=10)
    os.rename("named.h5", "moved.h5")
    return "run"


def write_photos(images, folder="photos", count=60):
    """Files of several formats and sizes in two folders; one of them is no image, and two are left out."""
    os.makedirs(f"{folder}/sub")
    for i in range(count):
        path = f"{folder}/{'sub/' if i % 2 else ''}{i}.{('png', 'jpg', 'bmp')[i % 3]}"
        Image.fromarray(images[i % len(images), ..., 0]).resize((8 + i % 5, 8 + i % 7)).save(path)
    Path(folder, "notes.txt").write_text("left out")
    Path(folder, ".hidden.png").write_text("left out")
    Path(folder, "sub", "bad.png").write_text("no image")


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def predict(transport, run, *inputs, out="p.jsonl", **options):
    trained = load_model(transport, run, False, {})
    sources = of_inputs(transport, trained, [str(each) for each in inputs], None)
    return write_predictions(transport, trained, sources, Path(out), named=True, force=True, **options)


# ── a checkpoint alone ────────────────────────────────────────────────────────────────────────────────────────
def test_a_checkpoint_predicts_without_its_data(run, alone, digits):
    np.save("a.npy", digits.images[:200])
    predict(alone, run, "a.npy", top=1)
    trained = load(alone, run, False, {"data": "moved.h5"}, "train")
    write_predictions(alone, trained, of_data(trained), Path("own.jsonl"), top=1)
    ours, theirs = lines("p.jsonl"), lines("own.jsonl")
    assert [line["top"] for line in ours] == [line["top"] for line in theirs]
    assert {line["top"][0]["name"] for line in ours} <= set(NAMES)
    assert all(NAMES[line["top"][0]["class"]] == line["top"][0]["name"] for line in ours)
    assert theirs[3] | {"top": 0} == {"input": "moved.h5", "example": 3, "label": int(digits.labels[3]), "top": 0}
    assert score_of(alone, trained).accuracy == np.mean([line["top"][0]["class"] == line["label"] for line in theirs])


def test_a_checkpoint_of_an_earlier_version_wants_its_data(run, alone, digits):
    np.save("a.npy", digits.images[:9])
    predict(alone, run, "a.npy")
    (path,) = Path("run/checkpoints").glob("iteration-*.h5")
    store.save_checkpoint(Path("old.h5"), replace(store.load_checkpoint(path), classes=(), inputs={}))
    with pytest.raises(DataError, match=says("named.h5")):
        load_model(alone, "old.h5", False, {})
    os.rename("moved.h5", "named.h5")
    predict(alone, "old.h5", "a.npy", out="old.jsonl")
    assert lines("old.jsonl") == lines("p.jsonl")


def test_facts_that_do_not_fit_the_network_are_refused(run, alone):
    (path,) = Path("run/checkpoints").glob("iteration-*.h5")
    stored = store.load_checkpoint(path)
    for wrong in (
        {"shape": np.int64([8, 8, 3])},
        {"mean_image": np.zeros((4, 4, 1))},
        {"std": np.zeros(3)},
        {"shape": np.float64(np.inf)},
        {"view": np.int64([3])},
    ):
        store.save_checkpoint(Path("wrong.h5"), replace(stored, inputs={**stored.inputs, **wrong}))
        with pytest.raises(CheckpointError, match=says("wrong.h5")):
            load_model(alone, "wrong.h5", False, {})


def test_other_data_are_prepared_as_the_training_data_were(run, alone, digits):
    """And not by their own mean."""
    bright = memory_part(np.minimum(digits.images[:50], 200) + np.uint8(50), digits.labels[:50])
    write_dataset("bright.h5", Content("bright", bright, None, NAMES, "digits"))
    np.save("bright.npy", bright.inputs.array)
    trained = load(alone, run, False, {"data": "bright.h5"}, "train")
    write_predictions(alone, trained, of_data(trained), Path("data.jsonl"))
    predict(alone, run, "bright.npy")
    assert [line["top"] for line in lines("data.jsonl")] == [line["top"] for line in lines("p.jsonl")]


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_many_files_give_the_same_lines_on_any_number_of_ranks(run, alone, digits, monkeypatch):
    monkeypatch.setattr("ringtrain.train.predict.EVALUATION_BATCH", 8)
    write_photos(digits.images)
    np.savez("more.npz", x=digits.images[:20, ..., 0], y=digits.labels[:20])
    inputs = ("photos", "more.npz", "photos/0.png")
    values = predict(alone, run, *inputs)
    assert (values.examples, values.bad) == (61 + 20 + 1, 1) and "sub/bad.png" in values.first
    for predicted in on_ranks(3, lambda transport: predict(transport, run, *inputs, out="p3.jsonl")):
        assert predicted.bad == 1
    assert Path("p.jsonl").read_bytes() == Path("p3.jsonl").read_bytes()
    stored = lines("p.jsonl")
    names = [line["input"] for line in stored[:61]]
    assert names == sorted(names, key=lambda name: name.split("/")) and "photos/sub/1.jpg" in names
    (bad,) = [line for line in stored if "error" in line]
    assert bad == {"input": "photos/sub/bad.png", "error": values.first} and "0x" not in values.first
    assert [line["example"] for line in stored[61:81]] == list(range(20))
    assert [line["label"] for line in stored[61:81]] == digits.labels[:20].tolist()
    assert stored[-1] | {"top": 0} == {"input": "photos/0.png", "top": 0}


def test_a_file_of_the_size_of_the_training_images_is_taken_as_it_is(run, alone, digits):
    """Also one file alone, of which the other ranks have no part."""
    os.mkdir("photos")
    for i in range(12):
        Image.fromarray(digits.images[i, ..., 0]).save(f"photos/{i:02}.png")
    np.save("a.npy", digits.images[:12])
    np.save("one.npy", digits.images[:1])
    predict(alone, run, "photos")
    predict(alone, run, "a.npy", out="a.jsonl")
    assert [line["top"] for line in lines("p.jsonl")] == [line["top"] for line in lines("a.jsonl")]
    predict(alone, run, "one.npy")
    for rank in on_ranks(3, lambda transport: predict(transport, run, "one.npy", out="one.jsonl")):
        assert rank.examples == 1
    assert lines("p.jsonl") == lines("one.jsonl") and len(lines("p.jsonl")) == 1


@pytest.mark.parametrize("resize", [None, "10", "8x12"])
def test_a_run_on_image_files_sees_new_files_as_its_evaluation_does(train, alone, digits, resize):
    for name in ("train", "test"):
        for i in range(12):
            path = Path("flowers", name, f"class {digits.labels[i] % 3}", f"{i:02}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.images[i, ..., 0]).resize((9 + i, 20 - i)).save(path)
    Path("three.toml").write_text(DROPOUT_NET.replace("units = 10", "units = 3"))
    train(out="run", model="three.toml", data="flowers", batch=6, iterations=4, resize=resize)
    trained = load(alone, "run", False, {}, "test")
    write_predictions(alone, trained, of_data(trained), Path("own.jsonl"))
    os.rename("flowers", "moved")
    predict(alone, "run", "moved/test")
    assert [line["top"] for line in lines("own.jsonl")] == [line["top"] for line in lines("p.jsonl")]
    assert {each["name"] for line in lines("p.jsonl") for each in line["top"]} == {"class 0", "class 1", "class 2"}


def test_what_is_left_out_of_a_folder_is_told_by_training_and_by_predictions(train, alone, digits):
    for i in range(6):
        path = Path("flowers", f"class {i % 3}", "in", f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[i, ..., 0]).save(path)
    Path("flowers", "readme").write_text("left out")
    Path("three.toml").write_text(DROPOUT_NET.replace("units = 10", "units = 3"))
    train(out="run", model="three.toml", data="flowers", batch=6, iterations=1)
    note = says(1, "flowers/readme")
    assert [line["text"] for line in lines("run/log.jsonl") if line["event"] == "note"].count(note) == 1
    assert of_data(load(alone, "run", False, {}, "train"))[0].notes == (note,)
    (source,) = of_inputs(alone, load_model(alone, "run", False, {}), ["flowers"], None)
    assert source.split.count == 6 and source.notes == (says(1, "flowers/readme"),)


@pytest.mark.parametrize(("height", "width"), [(8, 24), (24, 8), (16, 16), (3, 3000)])
def test_the_largest_square_at_the_centre_is_seen(height, width):
    image = np.zeros((height, width, 1), np.uint8)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    image[top : top + side, left : left + side] = 200
    box = centre_of(height, width, 8, 8)
    seen = np.empty((8, 8, 1), np.uint8)
    StoredPicture(image).cut(box, seen)
    assert box == (top, left, side, side) and (seen == 200).all()


def test_inputs_that_are_refused_before_anything_is_written(run, alone, monkeypatch):
    os.mkdir("empty")
    arrays = {
        "colour": np.zeros((2, 8, 8, 3), np.uint8), "small": np.zeros((2, 5, 8, 1), np.uint8),
        "text": np.array(["a"]), "flat": np.zeros(4, np.uint8), "no": np.zeros((0, 8, 8, 1), np.uint8),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    Path("damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    np.savez("named.npz", first=arrays["no"], second=arrays["no"])
    words = {"colour.npy": [(2, 8, 8, 3)], "small.npy": ["--resize", "5x8x1"], "no.npy": [(0, 8, 8, 1)]}
    others = ("flat.npy", "cat.jpg", "none.npy", "empty", "text.npy", "objects.npy", "damaged.npz", "named.npz", "else")
    for source in (*words, *others):
        with pytest.raises(DataError, match=says(source, *words.get(source, ()))) as error:
            predict(alone, run, source)
        assert error.value.everywhere and error.value.exit_code == 2
    trained = load_model(alone, run, False, {})
    two = replace(trained, facts=replace(trained.facts, shape=(8, 8, 2)))
    Path("cat.jpg").write_text("")
    with pytest.raises(DataError, match=says("npy", "npz")):  # of a network without an image input
        of_inputs(alone, two, ["cat.jpg"], None)
    monkeypatch.setitem(sys.modules, "PIL", None)  # an error of no file
    with pytest.raises(DataError, match=says("--upgrade")):
        predict(alone, run, "cat.jpg")
    assert not list(Path().glob("*p.jsonl*"))


# ── what is written ───────────────────────────────────────────────────────────────────────────────────────────
def test_formats_hold_the_same_predictions(run, alone, digits):
    write_photos(digits.images, count=4)
    np.save("a.npy", digits.images[:3])
    for out in ("p.jsonl", "p.csv", "p.h5"):
        predict(alone, run, "photos", "a.npy", out=out, top=99 if out == "p.jsonl" else None)
    rows = lines("p.jsonl")
    with h5py.File("p.h5") as file:
        names = [name.decode() for name in file["input"]]
        classes, probabilities, examples = file["class"][:], file["probability"][:], file["example"][:]
        assert file["label"][:].tolist() == [-1] * 8 and tuple(file.attrs["classes"]) == NAMES
    assert names == [line["input"] for line in rows] and examples.tolist() == [0] * 6 + [1, 2]
    for line, most, row in zip(rows, classes, probabilities, strict=True):
        if "error" in line:
            assert most == -1 and np.isnan(row).all()
            continue
        assert len(line["top"]) == 10 and line["top"][0]["class"] == most
        by_class = {each["class"]: np.float32(each["probability"]) for each in line["top"]}
        assert [by_class[k] for k in range(10)] == row.tolist()
        assert list(by_class) == np.argsort(-row, kind="stable").tolist()
    csv = Path("p.csv").read_text().splitlines()
    names = [line["top"][0]["name"] if "top" in line else "" for line in rows]
    assert [row["name"] for row in DictReader(csv)] == names
    assert csv[0] == "input,example,label,class,name," + ",".join(f"p{k}" for k in range(10)) + ",error"
    assert csv[5].startswith("photos/sub/bad.png,,-1,,,,") and "photos/sub/bad.png" in csv[5].split(",,")[-1]
    assert csv[6].startswith("a.npy,0,-1,")


def test_features_and_values_are_lists(run, alone, digits):
    np.save("a.npy", digits.images[:3])
    predict(alone, run, "a.npy", layer="pool1")
    assert np.shape(lines("p.jsonl")[2]["features"]) == (4, 4, 6)
    trained = load_model(alone, run, False, {})
    values = replace(trained, loss=MeanSquaredError())
    for out in ("v.jsonl", "v.csv", "v.h5"):
        write_predictions(alone, values, of_inputs(alone, values, ["a.npy"], None), Path(out), named=True)
    assert list(lines("v.jsonl")[0]) == ["input", "example", "values"] and len(lines("v.jsonl")[0]["values"]) == 10
    assert Path("v.csv").read_text().startswith("input,example,label,v0,v1,")
    with h5py.File("v.h5") as file:
        assert file["values"].shape == (3, 10) and "class" not in file


def test_true_values_stand_beside_predicted_ones(run, alone, digits, monkeypatch):
    y = np.random.default_rng(0).random((20, 10), np.float32)
    np.savez("r.npz", x=digits.images[:20], y=y)
    np.save("a.npy", digits.images[:3])
    values = replace(load_model(alone, run, False, {}), loss=MeanSquaredError())
    for out in ("v.jsonl", "v.csv", "v.h5"):
        sources = of_inputs(alone, values, ["r.npz", "a.npy"], None)
        write_predictions(alone, values, sources, Path(out), named=True)
    want = np.concatenate([y, np.full((3, 10), np.nan)]).astype(np.float32)
    with h5py.File("v.h5") as file:
        assert np.array_equal(file["target"], want, equal_nan=True) and "label" not in file
        assert file["input"].asstr()[...].tolist() == ["r.npz"] * 20 + ["a.npy"] * 3
        assert file["example"][...].tolist() == [*range(20), *range(3)]
    rows, stored = list(DictReader(Path("v.csv").read_text().splitlines())), lines("v.jsonl")
    assert [float(rows[7][f"y{k}"]) for k in range(10)] == pytest.approx(y[7]) and rows[21]["y0"] == "nan"
    assert np.float32(stored[7]["target"]).tolist() == y[7].tolist() and stored[21]["target"] == [None] * 10
    streamed = open_dataset("r.npz", most_bytes=0).train
    assert streamed.labels is None and np.array_equal(streamed.values(5, 8), y[5:8])


def test_what_is_no_text_goes_to_hdf5(run, alone, digits, monkeypatch):
    np.save("a.npy", digits.images[:3])
    monkeypatch.setattr(predictions, "MOST_IN_TEXT", 95)
    for out in ("p.jsonl", "p.csv", "-"):
        with pytest.raises(DataError, match=says(out, "96")):
            predict(alone, run, "a.npy", layer="pool1", out=out)
    predict(alone, run, "a.npy", layer="pool1", out="p.h5")
    with pytest.raises(DataError, match=says("--top", "p.csv")):
        predict(alone, run, "a.npy", out="p.csv", top=3)


def test_what_texts_cannot_hold(tmp_path):
    """A class for each pixel goes to HDF5, and so do many names; a number that JSON does not have is null."""

    def write(name, form, values, **options):
        values = np.float32(values)
        options = {"about": {}, "force": False, "top": None, "stream": None, **options}
        file = predictions.open_predictions(tmp_path / name, form, **options)
        places = [("\udcff ü", None)] if form.named else [("a", i) for i in range(len(values))]
        file.write(predictions.PredictionRows(0, places, np.full(len(values), -1, np.int32), values))
        file.finish()
        return tmp_path / name

    form = predictions.PredictionForm(predictions.PROBABILITY, 2, (3, 4, 5), tuple("abcde"), False)
    values = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    with pytest.raises(DataError, match=says("pixel", "line")):
        write("p.jsonl", form, values)
    with h5py.File(write("p.h5", form, values)) as file:
        assert np.array_equal(file["class"], values.argmax(-1)) and np.array_equal(file["probability"], values)
    names = (*(f"class {k}" for k in range(6000)), "\udcff")
    form = predictions.PredictionForm(predictions.PROBABILITY, 1, (len(names),), names, False)
    with h5py.File(write("q.h5", form, np.zeros((1, len(names))), about={"data": "\udcff"})) as file:
        assert file.attrs["classes"].tolist() == [*names[:-1], "\\udcff"]
    form = predictions.PredictionForm(predictions.VALUES, 1, (3,), (), True)
    path = write("v.jsonl", form, [[np.nan, 0.1, np.inf]])
    assert lines(path) == [{"input": "\udcff ü", "values": [None, 0.1, None]}] and path.read_bytes().isascii()


# ── in a program ──────────────────────────────────────────────────────────────────────────────────────────────
def test_a_program_predicts_as_the_command_does(run, alone, digits):
    np.save("a.npy", digits.images[:200])
    predict(alone, run, "a.npy", out="p.h5")
    predict(alone, run, "a.npy", out="f.h5", layer="relu1")
    model = ringtrain.load(run)
    assert model.classes == NAMES and model.model.input.shape == (8, 8, 1)
    with h5py.File("p.h5") as file, h5py.File("f.h5") as features:
        probabilities, shown = file["probability"][:], features["features"][:]
    assert np.array_equal(model.predict(digits.images[:200]), probabilities)
    assert np.array_equal(model.features(digits.images[:200], "relu1"), shown)
    assert model.predict(digits.images[:1]).shape == model.predict(digits.images[:1, ..., 0]).shape == (1, 10)
    assert model.predict(digits.images[0]).shape == model.predict(digits.images[0, ..., 0]).shape == (10,)
    assert np.allclose(model.predict(digits.images[0]), probabilities[0], atol=1e-6)
    for same in (digits.images[:4].astype(np.int16), list(digits.images[:4])):
        assert np.allclose(model.predict(same), probabilities[:4], atol=1e-6)
    # Neither inputs of another type nor a margin around the centre change anything.
    wide = np.pad(digits.images[:9], ((0, 0), (3, 3), (1, 2), (0, 0)), constant_values=255)
    assert np.array_equal(model.predict(wide), model.predict(digits.images[:9]))
    halves = digits.images[:3] / 2
    assert np.array_equal(model.predict(halves), ringtrain.load(run).predict(halves))
    with pytest.raises(DataError, match=says("--resize", "the", "array", "5x8x1")):
        model.predict(np.zeros((2, 5, 8, 1), np.uint8))
    with pytest.raises(DataError, match=says((4,))):
        model.predict(np.zeros(4))
    with pytest.raises(ModelError, match="did you mean 'relu1'"):
        model.features(digits.images[:2], "relu")
    with pytest.raises(CheckpointError):
        ringtrain.load("nowhere")


@pytest.mark.parametrize("mean", ["image", "channel"])
def test_images_of_one_channel_are_sequences_of_rows(train, alone, digits, mean):
    Path("rows.toml").write_text(ROWS_NET.format(mean=mean))
    train(out="rows", model="rows.toml", data="digits", batch=8, iterations=2)
    model = ringtrain.load("rows")
    probabilities = model.predict(digits.images[:3])
    assert np.array_equal(model.predict(digits.images[:3, ..., 0]), probabilities)
    np.save("rows.npy", digits.images[:3])
    predict(alone, "rows", "rows.npy", out="p.h5")
    with h5py.File("p.h5") as file:
        assert np.array_equal(file["probability"][:], probabilities)


def test_a_program_loads_no_mpi(run, digits):
    np.save("a.npy", digits.images[:2])
    program = (
        "import sys, numpy as np, ringtrain\n"
        "assert 'ringtrain.train' not in sys.modules\n"
        "assert ringtrain.load('run').predict(np.load('a.npy')).shape == (2, 10)\n"
        "heavy = {'mpi4py', 'cupy', 'torch', 'click', 'rich', 'PIL'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr


# ── standard output ───────────────────────────────────────────────────────────────────────────────────────────
class Closing:
    """A standard output whose reader goes away after a few lines."""

    def __init__(self):
        self.lines = []

    def write(self, text):
        if len(self.lines) == 3:
            raise OutputClosed
        self.lines.append(text)

    def flush(self):
        pass


def test_a_reader_that_goes_away_ends_all_ranks_in_silence(run, digits, monkeypatch):
    np.save("a.npy", digits.images[:40])
    monkeypatch.setattr(sys, "stdout", Closing())
    for error in on_ranks(2, lambda transport: predict(transport, run, "a.npy", out="-")):
        assert isinstance(error, OutputClosed) and error.everywhere
    assert [json.loads(line)["example"] for line in sys.stdout.lines] == [0, 1, 2]
