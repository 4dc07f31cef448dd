"""Inputs that were defects, found by fuzzing or by looking: each was a traceback, a hang, or memory without end."""

import gzip
import json
import math
import pickle
import re
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import source_makers
from data_makers import content, spoil_heap

from ringtrain import parsing
from ringtrain.cli.main import run
from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import read_run_file, resolve
from ringtrain.data.content import no_progress
from ringtrain.data.decoding import decoding
from ringtrain.data.file.check import check_file
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.write import write_dataset
from ringtrain.data.readers.make import make_dataset
from ringtrain.data.readers.members import read_members
from ringtrain.data.readers.sources import read_source
from ringtrain.errors import LONGEST, ConfigError, DataError, ModelError, RingtrainError, UsageError, nearest, plain
from ringtrain.nn import spec
from ringtrain.optim.lr import LearningRate
from ringtrain.parsing import LARGEST_NUMBER, parse_json, parse_toml, read_text, whole_number
from ringtrain.report.events import record
from ringtrain.report.records import parse_record, read_record
from ringtrain.report.sinks import truncate_log
from ringtrain.transport.launch_environment import ALONE, Launch, read_launch
from tests.readers import EVENTS, PYTHON
from tests.says import says


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_messages_are_plain_whoever_raises_them_and_the_nearest_of_very_long_names_is_not_looked_for():
    assert str(DataError("a\x1b[2J\u202eb\n\tc é \ud800")) == "a\\x1b[2J\\u202eb\\n\\tc é \\ud800"
    assert plain("größer") == "größer"
    long = str(RingtrainError("x" * 100_000))
    assert LONGEST - 100 < len(long) <= LONGEST and "92,100 characters are left out here" in long
    for text in ("x" * 100_000, "\0" * LONGEST, "a\x1b[2J\n"):
        assert len(plain(text)) <= LONGEST and plain(plain(text)) == plain(text)
    assert str(RingtrainError()) == ""
    assert nearest("x" * 1000, ["x" * 999]) == f"known: {'x' * 999}"
    assert nearest("b", [1, "a"]) == "known: 1, a"
    assert nearest("Gelu", ["GELU", "ReLU"]).startswith("did you mean 'GELU'?")
    assert nearest("Attention", ["Flatten", "Linear"]) == "known: Flatten, Linear"


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_numbers_of_variables_are_digits_of_a_number_and_a_rank_is_one_of_its_world():
    assert [whole_number(text) for text in ("", "²", "٣", "-1", "9" * 5000, "9" * 30)] == [None] * 6
    assert whole_number("0012") == 12
    assert read_launch({"OMPI_COMM_WORLD_SIZE": "²", "OMPI_COMM_WORLD_RANK": "0"}) == ALONE
    left_over = {"PMI_SIZE": "1", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    assert read_launch(left_over) == Launch("srun", 2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch = " + "9" * 5000, "Exceeds the limit"),
        ("batch = " + "[" * 5000, parsing.TOML_TOO_DEEP),
        ("batch = 0x" + "f" * 5000, parsing.NUMBER_OF_BITS.format(bits=20000)),
        ("lr_steps = [18446744073709551616]", parsing.NUMBER_OF_BITS.format(bits=65)),
        ('out = "a\\u0000"', says("run file r.toml: out", "'a\\x00'")),
    ],
)
def test_run_files(tmp_path, text, message):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ConfigError, match=says(message, "r.toml")) as error:
        resolve(("run file r.toml", read_run_file(str(tmp_path / "r.toml"))))
    assert len(str(error.value)) <= 2 * LONGEST


def test_flags_of_many_digits():
    for flag, value, most in (("lr", 10**400, LARGEST_NUMBER), ("batch", -(10**400), -LARGEST_NUMBER)):
        with pytest.raises(ConfigError, match=says(f"--{flag}", 401, most)):
            resolve(("flags", {flag: value}))
    assert resolve(("flags", {})) == TrainConfig()
    with pytest.raises(UsageError, match="finite"):
        resolve(("flags", {"lr": float("inf")}))


@pytest.mark.parametrize("value", [f"32x{'9' * 5000}", "x", "32x0", "032x32", "²x3"])
def test_pairs_of_numbers_of_many_digits(capsys, value):
    assert run(["data", "make", "s", "-o", "o", "--size", value]) == 2
    assert f"for '--size': '{value[:40]}" in capsys.readouterr().err


def test_texts_numbers_and_depth_are_bounded_and_a_learning_rate_beyond_all_numbers_is_infinite(tmp_path):
    (tmp_path / "t").write_bytes(b"x" * 11)
    with pytest.raises(ValueError, match=says("it has more than 10 bytes")):
        read_text(tmp_path / "t", 10)
    assert read_text(tmp_path / "t", 11) == "x" * 11
    with pytest.raises(ConfigError, match=says("/dev/zero")):
        read_run_file("/dev/zero")
    assert parse_json('{"a": [1, -2.5]}') == {"a": [1, -2.5]}
    for text in ("1" * 400, "9223372036854775808"):
        with pytest.raises(ValueError, match=says("has more than 63 bits")):
            parse_json(text)
    with pytest.raises(ValueError, match="too deep"):
        parse_json("[" * 100_000)
    assert parse_toml("a = 1") == {"a": 1}
    for policy, steps in (("step", (1,)), ("multistep", tuple(range(9)))):
        assert LearningRate(0.1, policy, steps, gamma=1e200).at(50) == float("inf")


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────
def model(layer: str, blocks: str = "") -> str:
    return f"input = {{ shape = [8, 8, 3] }}\n{blocks}\nlayers = [{layer}]"


LINEAR = '{name="f", kind="Flatten"}, {name="a", kind="Linear", units=2147483647}'
BLOCK = ",".join(f'{{name="r{i}", kind="ReLU"}}' for i in range(100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (model("[" * 3000), parsing.TOML_TOO_DEEP),
        (model('{name="a", kind="Conv2D", channels=2147483648, kernel=1}'), says("channels", 2147483648, 2147483647)),
        (model(LINEAR + ', {name="b", kind="Linear", units=2147483647}'), says("'b'", "2147483647x2147483647")),
        (
            model('{name="a", kind="Conv2D", channels=1, kernel=1, pad=1000000000}'),
            says("'a'", "2000000008x2000000008x1"),
        ),
        (model(",".join(f'{{name="u{i}", block="b"}}' for i in range(200)), f"blocks.b = [{BLOCK}]"), "10,000"),
    ],
)
def test_models(text, message):
    with pytest.raises(ModelError, match=says(message, "bad.toml")):
        spec.parse_model(text, "m", "bad.toml")


def test_what_models_say_is_shown_plain(tmp_path, capsys):
    text = 'summary = "\\u001b[2J"\n' + model('{name="f", kind="Flatten"}, {name="a", kind="Linear", units=2}')
    (tmp_path / "m.toml").write_text(text)
    assert run(["models", "show", str(tmp_path / "m.toml")]) == 0
    assert "\\x1b[2J" in capsys.readouterr().out


# ── data sets ─────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("read", [open_dataset, read_source])
@pytest.mark.parametrize("damage", ["first length", "free space"])
@pytest.mark.parametrize("classes", [3, 21_000])
def test_a_heap_of_texts_with_a_wrong_length_is_no_hang(tmp_path, classes, damage, read):
    """Also a heap of 64 KiB, of many, behind the examples."""
    path = tmp_path / "a.h5"
    write_dataset(path, content(classes=classes))
    data = bytearray(path.read_bytes())
    heap = spoil_heap(data, damage)
    path.write_bytes(data)
    for attempt in (lambda: read(path), lambda: read(f"{path}:train/images,train/labels")):
        with pytest.raises(DataError, match=rf"a\.h5 is damaged: .* byte {heap} "):
            attempt()
    assert re.search(rf"a\.h5 is damaged: .* byte {heap} ", check_file(path)[0])


def test_what_decoders_raise_is_told_with_the_file():
    for error, reason in ((KeyError("x"), "KeyError: 'x'"), (OSError("no"), "no"), (MemoryError(), "more memory than")):
        with pytest.raises(DataError, match=rf"a\.bin: .*{reason}"), decoding("a.bin"):
            raise error
    with pytest.raises(DataError, match=r"^own$"), decoding("a.bin"):
        raise DataError("own")


# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_npz_that_is_an_array_or_of_texts_and_an_archive_that_is_cut_short(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(DataError, match=says("numpy", "savez")):
        read_source(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in "xy":
            archive.writestr(f"{name}.npy", b"text")
    with pytest.raises(DataError, match=says("x")):
        read_source(tmp_path / "a.npz")
    whole = gzip.compress(bytes(3000))
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=says("a.tar.gz")):
        read_source(tmp_path / "a.tar.gz")


def test_names_that_are_no_text_are_refused_with_their_source(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2, 2), np.uint8), y=np.arange(2))
    names = pickle.dumps({"label_names": [f"c\x1b{k}" if k == 3 else str(k) for k in range(10)]})
    source_makers.in_folder(tmp_path / "cifar", PYTHON | {"batches.meta": names})
    for source, name, words in (("a.npz", "a\udcff", ["name"]), ("cifar", None, ["class 3", "'c\\x1b3'"])):
        with pytest.raises(DataError, match=says(source, *words)):
            make_dataset(tmp_path / source, tmp_path / "a.h5", name=name)
    assert not (tmp_path / "a.h5").exists()
    with pytest.raises(DataError, match="characters are left out here"):
        read_source("a" * 10_000)


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────────
LINES = [record(event) for event in EVENTS]
ITERATION = next(each for each in LINES if each["event"] == "iteration")
RANKS = next(each for each in LINES if each["event"] == "ranks")


def line(values):
    return json.dumps(values).encode() + b"\n"


OTHER_KINDS = [
    {"seconds": "x"}, {"iteration": -1}, {"examples": 2**63}, {"loss": 1e300}, {"images_per_s": []}, {"seconds": None},
    {"epoch": True}, {"epoch": None}, {"seconds": {}}, {"iteration": "7"}, {"loss": math.inf},
]  # fmt: skip


def pax(path, **headers):
    """An archive of one member with these headers."""
    member = tarfile.TarInfo("a")
    member.pax_headers = headers
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    return path


def test_an_archive_that_says_it_is_longer_than_it_is_takes_no_time_and_one_of_no_headers_is_none(tmp_path):
    """tarfile would read at its end until it has counted to an exbibyte."""
    words = ("own", "size") if sys.version_info < (3, 14) else ("truncated",)  # tarfile looks itself
    with pytest.raises(DataError, match=says("a.tar", *words)):
        read_members(pax(tmp_path / "a.tar", size=str(1 << 60)), {"b"}, no_progress)
    whole = bytearray(pax(tmp_path / "a.tar", comment="x").read_bytes())
    whole[124:136] = b"\x80" + b"\x7f" * 11  # the size of the first header, as a number of 11 bytes
    whole[148:156] = b"%06o\0 " % (sum(whole[:148]) + 8 * 32 + sum(whole[156:512]))
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(DataError, match=says("a.tar")):
        read_source(tmp_path / "a.tar")


def test_records_of_other_kinds_or_that_lack_something_are_passed_over(tmp_path):
    assert read_record(line(ITERATION)) == ITERATION
    assert read_record(line(ITERATION).strip()) is None
    for change in OTHER_KINDS:
        assert read_record(line(ITERATION | change)) is None, change
    short = {name: value for name, value in ITERATION.items() if name != "seconds"}
    assert read_record(line(short)) is None
    assert read_record(line(ITERATION | {"loss": None}))["loss"] is None  # not finite
    assert read_record(b'{"event": "start"}\n') == {"event": "start"}  # of an older ringtrain
    assert read_record(b'{"event": "of later", "iteration": {}}\n') == {"event": "of later", "iteration": {}}
    for change in ({"images": [1]}, {"updates": [1, "2"]}, {"lag": {"clock": {"x": 1}}}, {"lag": {"clock": 1}}):
        assert read_record(line(RANKS | change)) is None
    assert read_record(line(RANKS)) == RANKS
    assert parse_record(b'{"event": []}\n') is None
    assert parse_record(b"[" * 100_000 + b"\n") is None
    assert read_record(b'{"event": "note", "text": "\\u001b[2J"}\n')["text"] == "\\x1b[2J"
    lines = [line(ITERATION | {"iteration": value}) for value in (1, "x")]
    (tmp_path / "l").write_bytes(b"".join(lines))
    truncate_log(tmp_path / "l", 5)
    assert (tmp_path / "l").read_bytes() == lines[0]
