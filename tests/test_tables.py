"""Tables that grow row by row, and lists in columns."""

from ringtrain.tables import fixed_line, text_lines


def test_a_row_of_a_growing_table_keeps_its_columns_and_cuts_no_text():
    assert fixed_line([("a", 3), ("bc", 4), ("", 2)]) == "  a   bc"
    assert fixed_line([("longer", 3), ("b", 2)]) == "longer  b"


def test_columns_are_as_wide_as_their_longest_text_and_brackets_are_plain_text():
    rows = [("64 KiB", "ring", "[red]why"), ("1 MiB", "hierarchical", "")]
    assert text_lines(rows, "rll") == ["64 KiB  ring          [red]why", " 1 MiB  hierarchical"]
