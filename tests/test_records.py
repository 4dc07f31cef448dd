"""Typed records: what fits is read, and what does not is refused with its keys, its value and what is wanted."""

import json
import math
from dataclasses import MISSING, asdict, dataclass
from typing import Annotated

import pytest

from ringtrain.bench.measure.links import BETWEEN
from ringtrain.errors import UsageError
from ringtrain.records import LIMITS, SOME, Count, Rules, Unfit, load, read
from tests.readers import READERS


@dataclass(frozen=True)
class Part:
    name: str
    seconds: Annotated[float, Rules(above=0)] | None = None


@dataclass(frozen=True)
class Form:
    ranks: Count
    share: Annotated[float, Rules(low=0, below=1)]
    kind: Annotated[str, Rules(choices=("ring", "star"), key="class")]
    parts: Annotated[tuple[Part, ...], Rules(lengths=SOME)]
    host: Annotated[str, Rules(key="header.host")] = ""
    by_name: dict[str, Part] | None = None
    size: int | str = 0
    code: Annotated[int, Rules(low=-1, high=None)] = 0
    exact: bool = True
    any: object = None


GOOD = {"ranks": 2, "share": 0, "class": "ring", "parts": [{"name": "a", "seconds": 1}], "header": {"host": "n1"}}


def spoiled(*keys, value=MISSING, table=GOOD | {"by_name": {"x": {"name": "b"}}}):
    """The table with another value behind these keys, or without it."""
    whole = at = json.loads(json.dumps(table))
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    if value is MISSING:
        del at[keys[-1]]
    return whole


def test_what_fits_is_read():
    form = read(Form, GOOD | {"of tomorrow": 1, "code": -1, "any": [None]})
    assert form == Form(2, 0.0, "ring", (Part("a", 1.0),), "n1", code=-1, any=[None])
    assert type(form.share) is float
    assert read(Form, GOOD | {"header": 3}).host == ""
    assert [read(int | str, value) for value in (3, "x")] == [3, "x"]
    assert read(dict[str, list[float]], {"a": (1, 2.5)}) == {"a": [1.0, 2.5]}
    assert math.isnan(read(list[float], [None], {"null": True})[0])
    assert read(Part, {"name": "\x1b[2J"}, {"plain": True}).name == "\\x1b[2J"
    assert read(Form, asdict(form) | {"class": "ring"}) == read(Form, GOOD | {"code": -1, "any": [None], "header": 0})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (3, ("it is 3", "keys with values")),
        (spoiled("ranks"), ("ranks is missing", "a whole number at least 1")),
        (spoiled("ranks", value=0), ("ranks is 0", "at least 1")),
        (spoiled("ranks", value=2.0), ("ranks is 2.0", "a whole number")),
        (spoiled("ranks", value=True), ("ranks is True", "a whole number")),
        (spoiled("ranks", value=1 << 63), ("ranks is", "a whole number")),
        (spoiled("size", value=-1), ("size is -1", "at least 0 and at most")),
        (spoiled("code", value=-2), ("code is -2", "at least -1")),
        (spoiled("share", value=1), ("share is 1.0", "at least 0 and below 1")),
        (spoiled("share", value=math.nan), ("share is nan",)),
        (spoiled("share", value=math.inf), ("share is inf",)),
        (spoiled("share", value="x" * 10_000), ("share is 'xxx", "a number")),
        (spoiled("class", value="rign"), ("class is 'rign'", "did you mean 'ring'?")),
        (spoiled("class", value=["ring"]), ("class is ['ring']", "ring, star")),
        (spoiled("parts", value=[]), ("parts is []", "a list")),
        (spoiled("parts", value={}), ("parts is {}", "a list")),
        (spoiled("parts", 0, value="a"), ("parts[0] is 'a'", "keys with values")),
        (spoiled("parts", 0, "name"), ("parts[0].name is missing", "a text")),
        (spoiled("parts", 0, "seconds", value=0), ("parts[0].seconds is 0.0", "a number above 0")),
        (spoiled("by_name", "x", "name", value=None), ("by_name.x.name is None", "a text")),
        (spoiled("header", "host", value=1), ("header.host is 1", "a text")),
        (spoiled("size", value=[]), ("size is []", "a whole number or a text")),
        (spoiled("exact", value=1), ("exact is 1", "true or false")),
    ],
)
def test_what_does_not_fit_is_refused(table, words):
    with pytest.raises(Unfit) as refused:
        read(Form, table)
    assert all(word in str(refused.value) for word in words) and len(str(refused.value)) < 300


def test_rules_of_the_caller():
    for rules, value in (({"low": 2}, 1), ({"above": 2}, 2), ({"below": 2}, 2), ({"high": 2}, 3)):
        with pytest.raises(Unfit, match=r"seconds is .*2"):
            read(dict[str, float], {"seconds": value}, rules)
    assert read(float, 1e300, {"high": None}) == 1e300
    for kind, value in ((float, 2 * LIMITS[float]["high"]), (float, -2 * LIMITS[float]["high"]), (int, -1)):
        with pytest.raises(Unfit):
            read(kind, value)
    assert read(Part, {"name": "a", "nmae": 1}).name == "a"
    with pytest.raises(Unfit, match=r"'nmae'; did you mean 'name'"):
        read(Part, {"name": "a", "nmae": 1}, {"known": True})


def deep(depth):
    return ("[" * depth + "]" * depth).encode()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[1e999]", b"NaN", b"9" * 5000, *map(deep, (500, 100_000))]
)
def test_a_file_that_does_not_fit_is_named(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.json is no file of `x`: ") as refused:
        load(list[float], tmp_path / "a.json", "file of `x`")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=f"{path} .*{why}.*`x`"):
            load(dict, path, "file of `x`")
    (tmp_path / "long.json").write_bytes(b" " * 11 + b"{}")
    with pytest.raises(UsageError, match=r"of a user is no file of `x`: .* 10 "):
        load(dict, tmp_path / "long.json", "file of `x`", largest=10, named="of a user")


# ── the files ─────────────────────────────────────────────────────────────────────────────────────────────────
ROW, MODEL, LINKS = ("layouts", "1x2", "rows", 0), ("layouts", "1x2", "models", 0), ("header", "calibration", "links")
SPOILED = [
    ("tuning file", ("ringtrain tuning",), MISSING, "ringtrain tuning is missing"),
    ("tuning file", ("ringtrain tuning",), 2, "ringtrain tuning is 2; wanted 1"),
    ("tuning file", ("machine",), MISSING, "machine is missing"),
    ("tuning file", ("machine", "cores"), 2, "machine.cores is 2"),
    ("tuning file", ("layouts",), [], "layouts is []"),
    ("tuning file", ("layouts", "1x2"), 3, "layouts.1x2 is 3"),
    ("tuning file", ("layouts", "1x2", "ranks"), 0, "layouts.1x2.ranks is 0"),
    ("tuning file", ("layouts", "1x2", "rows"), [], "layouts.1x2.rows is []"),
    ("tuning file", ROW, "ring", "layouts.1x2.rows[0] is 'ring'"),
    ("tuning file", (*ROW, "median_s"), 0, "rows[0].median_s is 0.0"),
    ("tuning file", (*ROW, "median_s"), math.nan, "rows[0].median_s is nan"),
    ("tuning file", (*ROW, "bytes"), True, "rows[0].bytes is True"),
    ("tuning file", (*ROW, "correct"), "yes", "rows[0].correct is 'yes'"),
    ("tuning file", (*MODEL, "start_s"), -1, "models[0].start_s is -1.0"),
    ("tuning file", (*MODEL, "s_per_byte"), 1e308, "models[0].s_per_byte is 1e+308"),
    ("sweep", ("rows",), 3, "rows is 3"),
    ("sweep", ("rows", 0), {"algorithm": "ring"}, "rows[0].ranks is missing"),
    ("sweep", ("rows", 0, "algorithm"), ["ring"], "rows[0].algorithm is ['ring']"),
    ("sweep", ("rows", 0, "samples_s"), [], "rows[0].samples_s is ()"),
    ("sweep", ("rows", 0, "samples_s"), "fast", "rows[0].samples_s is 'fast'"),
    ("sweep", ("rows", 0, "samples_s"), [1.0, None], "rows[0].samples_s[1] is None"),
    ("sweep", ("rows", 0, "samples_s"), [0.0], "rows[0].samples_s[0] is 0.0"),
    *(("layers", ("header", "host_cores"), cores, f"header.host_cores is {cores!r}") for cores in (0, "x", 1.5)),
    ("layers", ("rows",), [], "its layers take no time"),
    *(
        ("fabric", ("header", "calibration", "core_s_per_byte"), value, "header.calibration.core_s_per_byte is")
        for value in (-1.0, "x", None, math.inf)
    ),
    ("fabric", ("header", "calibration", "beside_s_per_byte"), "x", "header.calibration.beside_s_per_byte is 'x'"),
    *(("fabric", LINKS, value, ".".join(LINKS)) for value in (None, {}, {BETWEEN: 1.0}, {BETWEEN: {}})),
    ("outcome", ("outcome",), "fine", "outcome is 'fine'"),
    ("outcome", ("exit_code",), 300, "exit_code is 300"),
    ("outcome", ("exit_code",), True, "exit_code is True"),
    ("outcome", ("lost",), 1, "lost is 1"),
    ("outcome", ("lost",), ["x"], "lost[0] is 'x'"),
    ("outcome", ("ranks",), -1, "ranks is -1"),
    ("outcome", ("ranks",), MISSING, "ranks is missing"),
    ("metrics", ("classes",), MISSING, "classes is missing"),
    ("metrics", ("classes", 0, "class"), 1, "classes[0].class is 1"),
    ("metrics", ("confusion",), [[1]], "confusion"),
    ("metrics", ("confusion",), [[1, -1], [0, 0]], "confusion[0][1] is -1"),
    ("metrics", ("iteration",), "7", "iteration is '7'"),
]


@pytest.mark.parametrize(("name", "keys", "value", "words"), SPOILED)
def test_a_file_is_refused_with_the_key_that_does_not_fit(tmp_path, name, keys, value, words):
    table = spoiled(*keys, value=value, table=json.loads(READERS[name].seeds()[0]))
    assert words in READERS[name].judge(json.dumps(table).encode(), tmp_path)


@pytest.mark.parametrize("name", sorted({name for name, *_ in SPOILED}))
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_such_file_is_refused(tmp_path, name, content):
    assert READERS[name].judge(content, tmp_path)
