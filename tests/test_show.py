"""Tables: columns of figures, rows that come one by one, lists, and CSV."""

import csv
import io

from ringtrain.show.tables import NOTHING, Column, csv_text, fixed_line, make_table, plain_lines, text_lines

ENDS = {"s_low": None, "s_high": None}


def test_a_column_shows_a_figure_in_its_unit_with_its_spread_or_that_there_is_none():
    time = Column("s", "time", "ms", "{:.1f} [{:.0f}, {:.0f}]", scale=1e3, spread=("_low", "_high"))
    assert time.text({"s": 0.5, "s_low": 0.25, "s_high": 1}) == "500.0 [250, 1000]"
    assert time.text({"s": None, "s_low": None, "s_high": None}) == NOTHING == Column("s", "time").text({})
    assert Column(1, "second", none="-").text(["a", None]) == "-"
    assert Column(None, "sum", "", lambda row: str(sum(row))).text([1, 2]) == "3"
    assert plain_lines(make_table([time, Column("n", "name", left=True)], [{"s": None, "n": "a\nb"} | ENDS])) == [
        "time  name", "  ms", f"   {NOTHING}  a\\nb"
    ]  # fmt: skip
    names = [{"n": "a-folder/a-run"}, {"n": "a/run"}]
    assert plain_lines(make_table([Column("n", "name", left=True)], names, words=9)) == [
        "name", "a-folder/", "a-run", "a/run"
    ]  # fmt: skip


def test_the_best_figures_are_those_that_differ_from_others():
    rows = [{"loss": value} for value in (2, 1, None, 1)]
    assert Column("loss", "loss", best=min).best_rows(rows) == [1, 3]
    assert Column("loss", "loss", best=max).best_rows(rows[1:]) == Column("loss", "loss").best_rows(rows) == []


def test_rows_keep_their_columns_are_as_wide_as_their_longest_text_and_hold_text_of_others():
    assert fixed_line([("a", 3), ("bc", 4), ("", 2)]) == "  a   bc"
    assert fixed_line([("longer", 3), ("b", 2)]) == "longer  b"
    rows = [("64 KiB", "ring", "[red]why"), ("1 MiB", "hierarchical", "")]
    assert text_lines(rows, "rll") == ["64 KiB  ring          [red]why", " 1 MiB  hierarchical"]
    assert text_lines([("a\x1b[2J\n\u202eb", "c")], "ll") == [r"a\x1b[2J\n\u202eb  c"]


def test_any_text_survives_csv():
    rows = [["a", '"', "b,c"], ["\n", "\r", "\r\n"], ["=1", "\x1b\0", "\u2028"]]
    text = csv_text(["x", "x", "x"], [*rows, [None, 1, 0.5]])
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["x"] * 3, *rows, ["", "1", "0.5"]]
    assert csv_text(["a", "b"], [[1, 2]]) == "a,b\n1,2\n"
