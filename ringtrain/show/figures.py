"""Figures: their style, parts that several of them have, and their files. Needs matplotlib, which is imported where a
figure is drawn.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from ringtrain.errors import UsageError, nearest, plain
from ringtrain.storage import files
from ringtrain.template import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 1500  # of a curve at most: more are finer than the picture
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
        raise UsageError(f"--plot {plain(str(path))}: unknown kind of picture {ending!r}; {nearest(ending, known)}")


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


def drawn(make: "Callable[[], Figure]", kind: str, style: dict = STYLE) -> bytes:
    """Make a figure, and return the bytes of its file. ``kind``: png, svg, pdf; ``style``: matplotlib's settings"""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(style), warnings.catch_warnings():
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


# ── axes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def doubling_x(axes: "Axes", ticks: Mapping[float, str], label: str, **style) -> None:
    """Make x logarithmic, each of its lines twice the one before. ``ticks``: their values and texts; ``style``: of the
    texts."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), list(ticks.values()), **style)
    axes.minorticks_off()
    axes.set_xlabel(label)


def say(axes: "Axes", text: str) -> None:
    """Write a text in place of a plot."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def entitle(figure: "Figure", title: str, small: str = "") -> None:
    """Write the title of a figure, in two lines at most, and at the lower end where its values come from."""
    width = figure.get_figwidth()
    lines = textwrap.wrap(plain(title, LINES), round(10 * width), max_lines=2, placeholder=" …")
    figure.suptitle("\n".join(lines), fontsize=12)
    if small:
        figure.supxlabel("\n".join(textwrap.wrap(small, round(18 * width))), x=0.01, ha="left", fontsize=7, color=GREY)
