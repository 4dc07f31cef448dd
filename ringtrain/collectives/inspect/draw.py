"""Drawings of a schedule: a table for the terminal, and a picture as SVG, PNG or PDF.

Both are drawn from the schedule itself, in rounds: the messages of a round travel at the same time if all messages take
equally long.
"""

from collections import defaultdict
from functools import partial
from pathlib import Path

from ringtrain.collectives.algorithms.timetable import rounds
from ringtrain.collectives.matching import MatchedMessage, all_steps, messages, span
from ringtrain.collectives.schedule import Move, Schedule, Step
from ringtrain.collectives.topology import Topology
from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.show.figures import drawn, need_matplotlib, new_figure

MOST_RANKS = 32  # more cannot be distinguished
MOST_CHUNKS = 16  # in the legend
DASHED = (0, (3, 2))
FORMATS = (".svg", ".png", ".pdf")


def in_rounds(schedule: Schedule) -> list[tuple[int, MatchedMessage]]:
    """Return (round, message) of every message, and of every addition within a rank, in the order of time."""
    steps = all_steps(schedule)
    met = messages(schedule, steps)
    timed = sorted(zip(rounds(schedule, steps, met), range(len(met)), strict=True))
    return [(max(time[0], 0), met[number]) for time, number in timed]


def schedule_table(schedule: Schedule) -> list[list[str]]:
    """Return a row for each round, with a cell for each rank: its sends, receives and additions."""
    cells = defaultdict(list)
    for round, message in in_rounds(schedule):
        if message.source == message.target:
            cells[round, message.target].append(local_text(message.send, message.recv))
        else:
            cells[round, message.source].append(send_text(message.send))
            cells[round, message.target].append(receive_text(message.recv))
    last = max((round for round, _ in cells), default=-1)
    return [["\n".join(cells[round, rank]) for rank in range(schedule.size)] for round in range(last + 1)]


def step_text(step: Step, rank: int) -> str:
    """Return a step of ``rank`` in the same signs."""
    local = zip(*([m for m in moves if m.peer == rank] for moves in (step.sends, step.recvs)), strict=True)
    out = [send_text(move) for move in step.sends if move.peer != rank]
    into = [receive_text(move) for move in step.recvs if move.peer != rank]
    return "  ".join([*out, *into, *(local_text(send, recv) for send, recv in local)])


def send_text(send: Move) -> str:
    """Return the sign of a send."""
    return f"→{send.peer} {span(send)}"


def receive_text(recv: Move) -> str:
    """Return the sign of a receive."""
    return f"←{recv.peer} {'+' if recv.add else ''}{span(recv)}"


def local_text(send: Move, recv: Move) -> str:
    """Return the sign of an addition or a copy within a rank."""
    return f"{span(recv)} {'+=' if recv.add else '='} {span(send)}"


def picture(schedule: Schedule, topology: Topology, path) -> None:
    """Write a picture: a line for each rank, time to the right, an arrow for each message, in the colour of its first
    chunk. Solid arrows add, dashed ones overwrite. Bands are nodes.

    Raises UsageError for a file of another kind, for a file that cannot be written, and without matplotlib.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"{path} does not name a picture: its name must end in {', '.join(FORMATS)}")
    need_matplotlib()
    style = {"svg.hashsalt": schedule.name, "svg.fonttype": "none"}  # ids do not depend on the process
    try:
        path.write_bytes(drawn(partial(_figure, schedule, topology), path.suffix[1:], style))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _figure(schedule: Schedule, topology: Topology):
    timed = [(round, message) for round, message in in_rounds(schedule) if message.source != message.target]
    last = max((round for round, _ in timed), default=0) + 1
    figure = new_figure(min(3.6 + 0.9 * last, 24), 1.2 + 0.45 * schedule.size)
    axes = figure.subplots()
    _draw_ranks(axes, topology)
    for round, message in timed:
        style = {"color": _colour(message.send.start, schedule), "linestyle": "-" if message.recv.add else DASHED}
        ends: dict = {"xytext": (round, message.source), "xy": (round + 0.9, message.target)}
        axes.annotate("", **ends, arrowprops={"arrowstyle": "-|>", "linewidth": 1.2, **style})
    title = f"The {schedule.name} {schedule.goal} on {plural(schedule.size, 'rank')}: {plural(last, 'round')}"
    axes.set(title=title, xlabel="round", xlim=(-0.2, last), ylim=(schedule.size - 0.5, -0.5))
    axes.set_xticks(range(last + 1))
    axes.spines[["top", "right", "left"]].set_visible(False)
    _draw_legend(axes, schedule)
    return figure


def _draw_legend(axes, schedule: Schedule) -> None:
    from matplotlib.lines import Line2D

    line = partial(Line2D, [], [], color="#444444", linewidth=1.2)
    entries = [
        line(linestyle="-", label="the receiver adds it"),
        line(linestyle=DASHED, label="the receiver overwrites its own"),
    ]
    first = min(schedule.chunks, MOST_CHUNKS)
    entries += [Line2D([], [], color=_colour(k, schedule), linewidth=3, label=f"chunk {k}") for k in range(first)]
    where = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "alignment": "left"}
    title = "an arrow is a message, in\nthe colour of its first chunk"
    axes.legend(handles=entries, title=title, title_fontsize="small", frameon=False, fontsize="small", **where)


def _draw_ranks(axes, topology: Topology) -> None:
    home = topology.node_of()
    for rank, node in enumerate(home):
        axes.axhspan(rank - 0.5, rank + 0.5, color="#f0f0f0" if node % 2 else "#ffffff", zorder=0)
        axes.axhline(rank, color="#bbbbbb", linewidth=0.8, zorder=1)
    several = len(topology.nodes) > 1
    axes.set_yticks(range(topology.size))
    axes.set_yticklabels([f"rank {r}" + (f", node {n}" if several else "") for r, n in enumerate(home)])


def _colour(chunk: int, schedule: Schedule):
    from matplotlib.colors import hsv_to_rgb

    return tuple(hsv_to_rgb((chunk % schedule.chunks / schedule.chunks, 0.85, 0.7)))
