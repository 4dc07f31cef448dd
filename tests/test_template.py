"""Text that is safe for a terminal, and the text that templates make."""

import pytest

from ringtrain.errors import UsageError
from ringtrain.storage.hdf5 import is_text
from ringtrain.template import Lines, Template, escaped

LATE = Template("rank {rank} is {late_s:.1f} s late (at {place!r})")


def test_a_template_is_filled_and_a_field_without_a_value_is_refused():
    assert LATE(rank=3, late_s=1.25, place="conv1") == "rank 3 is 1.2 s late (at 'conv1')"
    with pytest.raises(KeyError, match="place"):
        LATE(rank=3, late_s=1.25)


HOSTILE = "a\x1b[2J\u202e\udcff\nringtrain: forged"
SHOWN = r"a\x1b[2J\u202e\udcff\nringtrain: forged"


def test_values_are_escaped_and_stay_on_their_line():
    text = Template("{path}: {name!r}, {count:,}\n")(path=HOSTILE, name="\x1b", count=1000)
    assert text == f"{SHOWN}: '\\x1b', 1,000\n"


@pytest.mark.parametrize("template", ["all: {text}", "all:\n{what}", "all: {collective}"])
def test_texts_of_several_lines_keep_them(template):
    name = template.partition("{")[2][:-1]
    assert Template(template)(**{name: "one\n\ttwo\x1b"}).endswith("one\n\ttwo\\x1b")


def test_an_error_keeps_its_lines():
    error = UsageError(Lines("one\ntwo\x1b"))
    assert Template("{error}")(error=error) == "one\ntwo\\x1b" and Template("{error}")(error=ValueError("\n")) == r"\n"


@pytest.mark.parametrize("text", ["Bild 3\u202fPM.png", "10\xa0km", "画像\u3000データ", "می\u200cخواهم", "👩\u200d💻"])
def test_spaces_and_joiners_of_other_scripts_are_shown(text):
    assert escaped(text) == Template("{name}")(name=text) == text
    assert is_text(text)
