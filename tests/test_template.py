"""Text that is safe for a terminal."""

import pytest

from ringtrain.errors import UsageError
from ringtrain.show.output import from_ringtrain
from ringtrain.storage.hdf5 import is_text
from ringtrain.template import Lines, escaped, joined

HOSTILE = "a\x1b[2J\u202e\udcff\nringtrain: forged"
SHOWN = r"a\x1b[2J\u202e\udcff\nringtrain: forged"


def test_text_of_others_stays_on_its_line_and_lines_of_ringtrain_are_kept():
    assert escaped(HOSTILE) == str(UsageError(HOSTILE)) == SHOWN
    assert joined([HOSTILE, Lines("one\n\ttwo\x1b")]) == f"{SHOWN}\none\n\ttwo\\x1b"
    error = UsageError(Lines("one\ntwo\x1b"))
    assert str(error) == "one\ntwo\\x1b" and from_ringtrain(error, 3) == "ringtrain: rank 3: one\ntwo\\x1b"
    assert from_ringtrain(UsageError(HOSTILE)) == from_ringtrain(HOSTILE) == f"ringtrain: {SHOWN}"


@pytest.mark.parametrize("text", ["Bild 3\u202fPM.png", "10\xa0km", "画像\u3000データ", "می\u200cخواهم", "👩\u200d💻"])
def test_spaces_and_joiners_of_other_scripts_are_shown(text):
    assert escaped(text) == text and is_text(text)
