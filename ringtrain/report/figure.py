"""Parts that pictures of runs share: style, curves that are smooth and have few points, limits of axes, small print,
the file. Needs matplotlib, which is imported where a picture is drawn.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ringtrain.errors import UsageError, nearest, plain
from ringtrain.humanize import plural
from ringtrain.report import texts
from ringtrain.storage import files
from ringtrain.template import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 1500  # of a curve at most: more are finer than the picture
NAMED = 3  # hosts, dates … in small print
# Source: Okabe & Ito, Color universal design, 2008, without its yellow; purple and brown.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a51a3", "#8c564b", "#000000")
GREY, RULE = "#777777", "#dddddd"
# Names may hold a $, which is no formula. Two runs write the same bytes: no date, no ids that depend on the process.
STYLE: dict = {
    "text.parse_math": False,
    "svg.hashsalt": "ringtrain",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.constrained_layout.hspace": 0.05,
    "figure.constrained_layout.wspace": 0.05,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": "small",
}
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def check_picture(path) -> None:
    """Check, before hours of training, that the picture of --plot can be made. Raises UsageError."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known, ending = FigureCanvasAgg(Figure()).get_supported_filetypes(), kind_of(path)
    if ending not in known:
        raise UsageError(f"--plot {path}: unknown kind of picture {ending!r}; {nearest(ending, known)}")


def need_matplotlib() -> None:
    """Raise UsageError if there is none."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError("a picture needs matplotlib: pip install 'ringtrain[plot]'") from None


def kind_of(path) -> str:
    """Return the kind of a file by its ending, such as "png"."""
    return Path(path).suffix.lstrip(".")


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure. width, height: in inches"""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def drawn(make: "Callable[[], Figure]", kind: str, style: dict | None = None) -> bytes:
    """Make a figure in ringtrain's style, and return the bytes of its file. ``kind``: png, svg, pdf"""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({**STYLE, **(style or {})}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a letter that the font lacks is drawn as a box
        make().savefig(file, format=kind, metadata=UNDATED.get(kind))
    return file.getvalue()


def write_picture(make: "Callable[[], Figure]", path, folder: files.Folder | None = None) -> None:
    """Write a figure as PNG, SVG or PDF, by the path's ending; the file is replaced whole or not at all. ``folder``: of
    the file, if it is one of a run, in which no link is followed.

    Raises: UsageError, RingtrainError as ``files.write``.
    """
    (folder.write if folder else files.write)(Path(path), drawn(make, kind_of(path)))


# ── curves ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def running_mean(y: Sequence[float]) -> list[float]:
    """Return the mean of a window around each point, a fiftieth of the curve wide: centred, so that the curve does not
    lag behind.
    """
    sums = list(accumulate(y, initial=0.0))
    half = len(y) // 100
    windows = [(max(0, i - half), min(len(y), i + half + 1)) for i in range(len(y))]
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in windows]


def thin_out(x: Sequence[float], y: Sequence[float]) -> tuple[list, list]:
    """Return at most ``POINTS`` points of a curve, evenly taken, the last one among them."""
    step = max(1, math.ceil(len(x) / POINTS))
    taken = range((len(x) - 1) % step, len(x), step)
    return [x[i] for i in taken], [y[i] for i in taken]


def broken(x: Sequence[float], y: Sequence[float]) -> tuple[list, list]:
    """Return the curve with a gap where x makes a jump: training pauses there, and nothing lies between its ends."""
    steps = sorted(after - before for before, after in pairwise(x))
    if not steps:
        return list(x), list(y)
    least = max(4 * steps[len(steps) // 2], 0.004 * (x[-1] - x[0]))
    at_gap = [i for i, (before, after) in enumerate(pairwise(x), start=1) if after - before > least]
    broken_x, broken_y = list(x), list(y)
    for i in reversed(at_gap):
        broken_x.insert(i, x[i])
        broken_y.insert(i, math.nan)
    return broken_x, broken_y


def loss_view(tested: Sequence[float], trained: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the ends of an axis of losses; None is the axes' own choice, as of losses below zero.

    The start of training, and a run that diverges, must not compress the rest: the axis goes by the tests, and where
    room allows by the end of training; without tests by its first loss.
    """
    if min([*tested, *trained], default=-1.0) < 0:
        return None, None
    if not tested:
        return 0.0, 1.2 * trained[0] or 1.0
    top = end_of_view(tested, 2.5) or 1.0
    return 0.0, min(2 * top, max([top, *(1.1 * loss for loss in trained[-1:])]))


def accuracy_view(tested: Sequence[float], trained: Sequence[float] = ()) -> tuple[float, float]:
    """Return the ends of an axis of accuracies, in percent: it begins where twice the usual error is, so that 97 and
    99 % lie apart; where room allows it has the end of training too. Both: fractions
    """
    if not (tested or trained):
        return 0.0, 101.0
    missed = max(end_of_view([1 - accuracy for accuracy in tested or trained], 2.0), 0.005)
    missed = min(2 * missed, max([missed, *(1.1 * (1 - accuracy) for accuracy in trained[-1:])]))
    low = max(0.0, 100 * (1 - missed))
    return low, 100 + 0.02 * (100 - low)


def end_of_view(values: Sequence[float], times: float) -> float:
    """Return ``times`` the value that three quarters of the values do not exceed."""
    return times * sorted(values)[3 * (len(values) - 1) // 4]


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def entitle(figure: "Figure", text: str) -> None:
    """Write the title of a figure, in two lines at most."""
    characters = round(10 * figure.get_figwidth())
    lines = textwrap.wrap(plain(text, LINES), characters, max_lines=2, placeholder=" …")
    figure.suptitle("\n".join(lines), fontsize=12)


def print_small(figure: "Figure", text: str) -> None:
    """Write where the figures come from at the lower end."""
    lines = textwrap.wrap(text, round(18 * figure.get_figwidth()))
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7, color=GREY)


def small_print(starts: Sequence[dict]) -> str:
    """Return version, dates, hosts, device and MPI of runs, each once. ``starts``: their ``start`` records"""
    versions = few(texts.VERSION(version=each["version"]) for each in starts if each.get("version"))
    dates = few(date_of(each) for each in starts)
    hosts = few(host for each in starts for host in each.get("hosts") or [])
    devices = few(each.get("device") for each in starts)
    libraries = few(each.get("mpi") for each in starts)
    return " · ".join(filter(None, (versions, dates, hosts, devices, libraries)))


def few(values: Iterable[str | None]) -> str:
    """Return the different ones in words: the first three, and how many more there are."""
    found = list(dict.fromkeys(plain(value) for value in values if value))
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return ", ".join(found[:NAMED] + more)


def date_of(start: Mapping) -> str:
    """Return the date of a start as people read it; empty if it is not known."""
    date = start.get("date") or ""
    return f"{date[:10]} {date[11:16]} UTC" if len(date) >= 16 else date


def title_of(start: Mapping) -> str:
    """Return model, data, ranks and batch of a run."""
    if {"model", "data", "ranks", "batch"} - start.keys():
        return ""
    ranks = plural(start["ranks"], "rank")
    return f"{start['model']} on {start['data']}, {ranks}, batch {start['batch']:,}"


def say(axes: "Axes", text: str) -> None:
    """Write a text in place of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
