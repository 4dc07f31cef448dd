"""Tables that grow row by row, and lists in columns."""

import csv
import io

from ringtrain.tables import csv_text, fixed_line, text_lines


def test_a_row_of_a_growing_table_keeps_its_columns_and_cuts_no_text():
    assert fixed_line([("a", 3), ("bc", 4), ("", 2)]) == "  a   bc"
    assert fixed_line([("longer", 3), ("b", 2)]) == "longer  b"


def test_columns_are_as_wide_as_their_longest_text_and_brackets_are_plain_text():
    rows = [("64 KiB", "ring", "[red]why"), ("1 MiB", "hierarchical", "")]
    assert text_lines(rows, "rll") == ["64 KiB  ring          [red]why", " 1 MiB  hierarchical"]


def test_text_of_others_stays_in_its_cell():
    assert text_lines([("a\x1b[2J\n\u202eb", "c")], "ll") == [r"a\x1b[2J\n\u202eb  c"]


def test_any_text_survives_csv():
    rows = [["a", '"', "b,c"], ["\n", "\r", "\r\n"], ["=1", "\x1b\0", "\u2028"]]
    text = csv_text(["x", "x", "x"], [*rows, [None, 1, 0.5]])
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["x"] * 3, *rows, ["", "1", "0.5"]]
    assert csv_text(["a", "b"], [[1, 2]]) == "a,b\n1,2\n"
