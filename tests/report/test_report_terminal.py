import contextlib
import fcntl
import io
import os
import re
import struct
import termios
from dataclasses import replace

import pytest
from rich.console import Console

from ringtrain.report.events import CheckpointSaved, Compiled, Note
from ringtrain.report.screen import words
from ringtrain.report.screen.epoch_table import Epochs
from ringtrain.report.screen.live import LiveScreen, Status, join_fitting, status_parts
from ringtrain.report.screen.plain import PlainScreen
from ringtrain.report.screen.terminal import Terminal, is_live, terminal
from tests.report.conftest import OTHERS, RANKS, ended, epoch, exchanged, iteration, run
from tests.says import says

UTF8 = {"TERM": "xterm-256color"}


def displayed(happened):
    """What a plain terminal shows of these events."""
    stream = io.StringIO()
    sink = Terminal(PlainScreen(stream))
    for event in happened:
        sink.handle(event)
    sink.close()
    return stream.getvalue().splitlines()


class Pty:
    """A terminal of our own: what is written to ``stream`` can be read back."""

    def __init__(self, columns, encoding="utf-8"):
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = open(slave, "w", encoding=encoding)  # noqa: SIM115

    def written(self):
        self.stream.flush()
        os.set_blocking(self._master, False)
        content = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._master, 65536):
                content += piece
        return content.decode()

    def close(self):
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def pty():
    with contextlib.ExitStack() as stack:
        yield lambda columns, **how: stack.enter_context(contextlib.closing(Pty(columns, **how)))


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────
def test_the_header():
    facts = {
        "model": says("digits", "34,826", "float32"),
        "data": says("digits", "1,438", "359"),
        "ranks": says(2, "1 node", "CPU x86-64-v3, 1 thread"),
        "strategy": says("allreduce (ring)", "exact", "equal"),
        "batch": says("64", "23 iterations"),
        "optimizer": "sgd, momentum 0.9",
        "rate": says("0.05", "cosine"),
        "length": says("20 epochs", "460 iterations"),
        "seed": "1",
        "folder": "runs/digits-20260131-235958",
    }
    lines = [says(f"{name:<10}", text) for name, text in facts.items()]
    header = words.run_header(run())
    assert header == [says("0.1.0"), *lines] and header[-1] == "  folder     runs/digits-20260131-235958"
    assert len(header) == 11
    unusual = run(exact=False, test_examples=0, folder=None, epochs=None, resumed_at=130, nodes=2)
    parts = ("exact", "differs", "none", "test", "nothing", "kept", "460 iterations", "130", "2 nodes")
    assert says(*parts, "CPU x86-64-v3, 1 thread").matches("\n".join(words.run_header(unusual)))
    for hosts, ranks in ((["node7"] * 2, (2, "1 node", "node7")), ([f"node{k}" for k in range(5)], (5, "5 nodes"))):
        started = run(hosts=hosts, ranks=len(hosts), nodes=len(set(hosts)))
        assert says("ranks     ", *ranks, "CPU x86-64-v3, 1 thread").matches(words.run_header(started))


FIRST_ITERATION = says("1", "460", " 1", 20, "2.3000", "accuracy", "12.50%", "0.05", "12,346")


def outcome(reason, ranks):
    return says(reason, "460 iterations", "20 epochs", ranks, "1:02:05")


def last_score(best):
    return says("0.1000", "accuracy", "97.50%", best)


SPEED = says("12,346")


def test_a_whole_run_in_plain_lines():
    saved = CheckpointSaved(path="runs/a/checkpoints/iteration-00000460.h5", iteration=460, seconds=0.1)
    lines = displayed([run(), *OTHERS, iteration(), epoch(), saved, ended()])
    assert lines[11:] == [
        says("preparing", "first"),
        says("31 kernels", "4.2"),
        says("30", "0.5000", "acc", "90.00%", " *", "1:10"),
        says("passed over a damaged checkpoint"),
        FIRST_ITERATION,
        "            train loss     acc test loss     acc        rate examples/s   time",
        "epoch  1/20     1.5000  50.00%    0.7500  87.50%        0.05     12,346   1:05",
        outcome("done", "2 ranks"),
        last_score(best=""),
        SPEED,
        says("3.1"),
        says("runs/digits-20260131-235958", "iteration-00000460.h5"),
    ]


def test_a_run_without_a_test_part():
    untested = {"test_loss": None, "test_accuracy": None}
    start = run(epochs=None, folder=None, test_examples=0)
    lines = displayed([start, epoch(**untested), ended(**untested, reason="interrupted", ranks=1)])
    assert lines[12:] == [
        "        train loss     acc      rate examples/s   time",
        "epoch 1     1.5000  50.00%         -          -   1:05",
        outcome("interrupted", "1 rank"),
        SPEED,
    ]


def test_communication_is_one_line_where_there_is_any_and_the_hash_of_weights_where_it_is_asked_for():
    share, size = says("3.1"), says("4.0 MiB", "42.5 ms")
    most = says("32.5 ms", "conv.weight")
    assert displayed([run(), exchanged(), ended()])[-2] == share + size + most
    idle = tuple(replace(bucket, total_s=0.0) for bucket in exchanged().buckets)
    for nothing in ((), idle):
        assert displayed([run(), exchanged(buckets=nothing), ended()]) == displayed([run(), ended()])
    assert not share.matches(displayed([run(), exchanged(), ended(ranks=1)]))
    small = (replace(exchanged().buckets[0], nbytes=1536),)
    assert displayed([run(), exchanged(buckets=small), ended()])[-2] == share + says("1.5 KiB", "10 ms")
    shown = says("ab" * 32)
    happened = [epoch(weights_sha256="ab" * 32), ended()]
    assert shown not in displayed([run(), *happened])
    assert displayed([run(reproducible="the same bits"), *happened]).count(shown) == 2


def test_the_best_epoch_has_a_mark_and_the_end_names_it():
    scores = [(1, 0.9), (2, 1.0), (3, 1.0), (4, 0.975)]
    lines = displayed([run(), *(epoch(epoch=k, test_accuracy=score) for k, score in scores), ended()])
    rows = [line for line in lines if line.startswith("epoch")]
    assert ["*" in row for row in rows] == [True, True, False, False]
    assert len({row.index(".75") for row in rows}) == len({row.rindex("%") for row in rows}) == 1  # 100.00% is wider
    assert last_score(says("100.00%", 2, "*")) in lines
    resumed = displayed([run(best=0.98), epoch(test_accuracy=0.97), ended()])
    assert last_score(says("98.00%", "*")) in resumed and resumed[13].count("*") == 0


def test_times_and_kernels_from_the_cache():
    assert words.compiled(Compiled(seconds=0.31, kernels=0)) == says("0.3")
    assert list(map(words.clock, (0.4, 59.6, 3599.0, 3661.0))) == ["0:00", "1:00", "59:59", "1:01:01"]


def test_how_far_ranks_were_apart_and_how_fast_each_was():
    """A clock lag of 0 nine times, of 1 once; version lags 0, 2 and 2: their medians, and the most."""
    ranks = replace(RANKS, updates=[10, 4], training_s=[2.0, 0.0])
    assert words.lag_line(ranks) is None
    apart = replace(ranks, lag={"clock": {0: 9, 1: 1}, "version": {2: 2, 0: 1}, "other": {}})
    assert words.lag_line(apart) == says("clock", 0, 1, "version", 2, "5, 0")


ALL = ["train loss", "acc", "test loss", "acc", "rate", "examples/s", "time"]


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (None, ALL),
        (80, ALL),
        (77, [*ALL[:5], "time"]),
        (59, [*ALL[:4], "time"]),
        (58, ["train loss", "test loss", "acc", "time"]),
        (50, ["train loss", "test loss", "acc"]),
        (30, ["acc"]),
    ],
)
def test_a_row_of_a_long_run_fits_the_screen(width, heads):
    wide = epoch(epoch=100, train_loss=1.2345, train_accuracy=1.0, seconds=3000)
    head, row = Epochs(run(epochs=100)).lines(wide, iteration(lr=0.00316228, images_per_s=1_234_567.0), True, width)
    assert re.findall(r"train loss|test loss|acc|rate|examples/s|time", head) == heads
    assert max(len(head), len(row)) <= (width or 80)
    assert row.startswith("epoch 100/100") and "*" in row


def test_a_head_comes_once_and_again_where_a_narrower_screen_has_other_columns():
    rows = Epochs(run())
    counts = [len(list(rows.lines(epoch(epoch=k), iteration(), False, w))) for k, w in enumerate((80, 80, 50, 50), 1)]
    assert counts == [2, 1, 2, 1]
    _, row = Epochs(run()).lines(epoch(test_loss=None, test_accuracy=None), iteration(), False, None)
    assert row == "epoch  1/20     1.5000  50.00%         -       -        0.05     12,346   1:05"  # not evaluated


def test_how_far_ranks_are_from_their_mean_has_a_column_where_they_differ():
    rows = Epochs(run())
    shown = [list(rows.lines(epoch(distance=each), iteration(), False, None)) for each in (None, 0.01234, None)]
    assert [len(lines) for lines in shown] == [2, 2, 1]
    assert "apart" not in shown[0][0] and "apart" in shown[1][0]
    assert shown[1][1].split()[6] == "0.0123" and shown[2][0].split()[6] == "-"
    assert words.evaluated(replace(OTHERS[1], distance=0.5)) == says("apart 0.5")


# ── plain lines ─────────────────────────────────────────────────────────────────────────────────────────
def test_progress_comes_at_a_sensible_rate():
    happened = [iteration(iteration=k, seconds=0.1 * k) for k in range(1, 401)]
    lines = displayed([run(), *happened])[12:]
    assert [line.split("/")[0] for line in lines] == [f"iteration {k}" for k in (1, 101, 201, 301)]
    slow = [iteration(iteration=k, seconds=11.0 * k) for k in range(1, 6)]
    assert len(displayed([run(), *slow])) == 12 + 5


def test_no_control_characters_and_an_encoding_that_lacks_a_letter():
    lines = displayed([run(model="bad\x1b[31m\rname"), iteration(), Note(text="two\nlines\x07"), epoch(), ended()])
    assert "".join(lines).isprintable()
    assert says("two lines\\x07").matches(lines)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    sink = Terminal(PlainScreen(stream))
    sink.handle(run(model="größer"))
    assert b"gr??er" in stream.buffer.getvalue()


def test_a_reader_that_went_away_does_not_end_the_run():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8", closefd=False) as stream:
        sink = Terminal(PlainScreen(stream))
        for event in (run(), iteration(), iteration(seconds=99.0)):
            sink.handle(event)
        sink.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what the stream still holds has to go somewhere
    os.close(writer)


# ── which of the two ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("columns", "encoding", "environment", "live"),
    [
        (80, "utf-8", UTF8, True),
        (0, "utf-8", UTF8, False),  # Open MPI gives each rank such a one, where mpirun's own output goes to a file
        (80, "utf-8", {}, False),
        (80, "utf-8", {"TERM": ""}, False),
        (80, "utf-8", {"TERM": "dumb"}, False),
        (80, "latin-1", UTF8, False),
    ],
)
def test_which_terminal_is_live(pty, columns, encoding, environment, live):
    assert is_live(pty(columns, encoding=encoding).stream, environment) == live


def test_the_screen_is_chosen_by_the_stream(pty, monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="utf-8") as stream:
        assert not is_live(stream, UTF8)
    monkeypatch.setenv("TERM", "xterm")
    terminal_of_ours = pty(80)
    for stream, live in ((terminal_of_ours.stream, True), (io.StringIO(), False)):
        sink = terminal(stream)
        sink.handle(run())
        sink.handle(iteration())
        sink.close()
        shown = terminal_of_ours.written() if live else stream.getvalue()
        assert ("\x1b[" in shown) == live


# ── the live display ────────────────────────────────────────────────────────────────────────────────────
def live_screen(screen, run, header, show):
    """What a terminal gets from a run with this header, and ``show(live)``."""
    live = LiveScreen(screen.stream)
    live.begin(run, header)
    show(live)
    live.close()
    return screen.written()


def shown(status, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(status)
    return console.file.getvalue().split("\n")


def test_the_lines_that_change_before_the_first_iteration_at_it_and_later():
    status = Status(run())
    status.note(iteration(iteration=10, seconds=1.0))
    status.note(iteration(iteration=115, epoch=6, seconds=22.0))
    bar, line, *rest = shown(status, 100)
    assert bar.startswith("epoch  6/20 ━━━━━━")
    assert bar.endswith(" 25%")
    assert len(bar) == 100
    parts = [says("2.3000"), says("12.50%"), says("1:09"), SPEED]
    assert line.rstrip() == says(*parts, "115", "460")
    assert [each.strip() for each in rest] == ["", ""]  # mpirun shows a line only when the next has begun
    assert says("preparing", "first").matches(shown(Status(run()), 80)[0])
    assert status_parts(iteration(), iteration(), run())[2] == says("-:--")
    for width, line in ((9, "one   two"), (8, "one"), (1, "one")):
        assert join_fitting(["one", "two", "three"], width) == line


@pytest.mark.parametrize("width", [80, 60, 40, 20, 12])
def test_narrow_terminals(width):
    status = Status(run())
    status.note(iteration())
    lines = shown(status, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 4
    assert says("2.3000").matches(lines[1])


def test_a_live_run_leaves_the_terminal_as_it_was(pty, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = pty(40)
    sink = Terminal(LiveScreen(screen.stream))
    for event in (run(device="a CPU of a very long name " * 3), iteration(), epoch(), ended()):
        sink.handle(event)
    sink.close()
    sink.close()
    written = screen.written()
    assert "…" in written.split("strategy")[0]  # the header stays at a line a fact
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") >= 0
    (row,) = (line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).splitlines() if "0.7500" in line)
    assert len(row.strip()) <= 40
    end = written.index("done: 460 it")  # the rest may be on the next line
    assert written.index("epoch  1/20") < end and "\x1b[" not in written[end:]
    screen.stream.write("error: the loss is not finite\n")
    assert screen.written() == "error: the loss is not finite\r\n"


def test_the_cursor_is_never_left_hidden_and_nobodys_text_reaches_the_terminal_as_a_command(pty):
    """A rank may be killed at any time, and nobody brings the cursor back then."""
    screen = pty(80)
    live = LiveScreen(screen.stream)
    live.begin(run(), [])
    written = screen.written()
    live.close()
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    written = live_screen(pty(80), run(), ["model \x1b]0;mine\x07"], lambda live: live.line("note: \x1b[2Jmine"))
    assert "\x1b]0;" not in written and "\x1b[2J" not in written
    assert "model \\x1b]0;mine\\x07" in written and "note: \\x1b[2Jmine" in written


def test_no_colour_where_none_is_wanted(pty, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[38" not in live_screen(pty(80), run(), [], lambda live: live.progress(iteration()))
