"""Preflight check: one line for each requirement of a run, with advice.

A check is one function of a :class:`DoctorContext`. Every rank calls it in the same order, so it may be collective.
Lines that all ranks have are shown once.
"""

import socket
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ringtrain.errors import RingtrainError, naming_packages
from ringtrain.transport.base import Transport

if TYPE_CHECKING:  # the doctor loads the CUDA half only if a device is checked
    from ringtrain.ops.cuda.cupy_runtime import CupyRuntime

OK, WARN, FAIL = "ok", "warn", "fail"
SEVERITY = (OK, WARN, FAIL)
LIMIT_S = 120.0  # far more than any check takes, even if many ranks share the cores
LONGER_S = {"mpi cuda": 240.0, "device": 240.0, "links": 240.0}  # a child opens a device; many nodes


@dataclass(frozen=True, slots=True)
class Line:
    """A finding. ``status``: :data:`OK`; :data:`WARN`: a run works, but not as well as it could; :data:`FAIL`: it does
    not work. ``text``: the finding; ``advice``: how to fix it. ``ranks``: the ranks that have this line; empty: all.
    """

    status: str
    name: str
    text: str
    advice: str = ""
    ranks: tuple[int, ...] = ()


def line(name: str, text: str, advice: str | None = None, status: str = WARN) -> Line:
    """Return a line that is well, or has ``status`` if there is advice."""
    return Line(OK, name, text) if advice is None else Line(status, name, text, advice)


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """The machine and the options of the checks."""

    transport: Transport
    environ: Mapping[str, str]
    device: str  # of --device: auto (a device if there is one), cpu, cuda
    mpi_cuda: str  # auto, direct or staged
    visible: Callable[[], int]  # returns the number of devices this process sees; raises DeviceError
    make: Callable[[int], "CupyRuntime"]  # makes the Runtime of a device's number; raises DeviceError
    maker: str  # "module:name" of the same, for a child
    root: Path = Path("/")  # the folder that stands for the root of the file system, with /proc, /sys and /dev
    path: Path = Path("runs")  # the place of run folders
    host: str = field(default_factory=socket.gethostname)  # the name of this host


Check = Callable[[DoctorContext], Iterable[Line]]


def examine(context: DoctorContext, checks: Sequence[Check], limit_s: float = LIMIT_S) -> list[Line]:
    """Return the lines of all ranks, on every rank; collective. An error of a check, such as a missing package or an
    unreadable file, becomes a line. A check that takes longer than ``limit_s`` ends the process: it may wait in the
    system, for a file system or a driver."""
    lines, activity = list[Line](), context.transport.activity
    for check in checks:
        name = check.__name__.replace("_", " ")
        activity.deadline_s = max(limit_s, LONGER_S.get(name, 0.0))
        try:
            with activity.holds_gil(f"the check of {name}"), naming_packages():
                lines += [*check(context)]
        except (RingtrainError, OSError) as error:
            lines.append(Line(FAIL, name, str(error)))
    return merge_lines(_gathered(context, lines))


def from_first(context: DoctorContext, lines: Iterable[Line]) -> list[Line]:
    """Return rank 0's lines, on every rank; collective."""
    return _gathered(context, lines)[0]


def _gathered(context: DoctorContext, lines: Iterable[Line]) -> list[list[Line]]:
    every = context.transport.gather_json([asdict(line) for line in lines])
    return [[Line(**{**line, "ranks": ()}) for line in each] for each in every]


def merge_lines(every: Sequence[Sequence[Line]]) -> list[Line]:
    """Merge the lists of all ranks, in the order of the first; a line that only some ranks have names them."""
    holders: dict[str, dict[Line, list[int]]] = {}
    for rank, lines in enumerate(every):
        for line in lines:
            holders.setdefault(line.name, {}).setdefault(line, []).append(rank)
    merged = ((line, ranks) for lines in holders.values() for line, ranks in lines.items())
    return [replace(line, ranks=() if len(ranks) == len(every) else tuple(ranks)) for line, ranks in merged]


def worst_status(lines: Sequence[Line]) -> str:
    return max((line.status for line in lines), key=SEVERITY.index, default=OK)


def format_lines(lines: Sequence[Line], hosts: Sequence[str], width: int = 10**6) -> list[str]:
    """Return lines as text. ``hosts``: by rank, named if ranks differ; ``width``: characters of a line."""
    indent = 6 + max((len(line.name) for line in lines), default=0) + 2
    shown = []
    for line in lines:
        head = f"{line.status:<4}  {line.name}".ljust(indent)
        shown += _wrapped(head, _located(line, hosts), indent, width)
        if line.advice:
            shown += _wrapped(" " * indent + "→ ", line.advice, indent + 2, width)
    return shown


def _wrapped(head: str, text: str, indent: int, width: int) -> list[str]:
    """Wrap ``text`` after its head, with an indent; a word longer than a line, such as a path, stays whole."""
    first, *rest = textwrap.wrap(text, max(width - indent, 20), break_long_words=False, break_on_hyphens=False) or [""]
    return [head + first, *(" " * indent + line for line in rest)]


def summary_line(lines: Sequence[Line]) -> str:
    """Return the number of lines of each status."""
    counts = Counter(line.status for line in lines)
    return ", ".join(f"{counts[status]} {status}" for status in reversed(SEVERITY) if counts[status])


def _located(line: Line, hosts: Sequence[str]) -> str:
    if not (ranks := line.ranks):
        return line.text
    places = list(dict.fromkeys(hosts[rank] for rank in ranks))
    reported = ", ".join(places[:4]) + (" …" if len(places) > 4 else "")
    numbers = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    which = f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers}"
    return f"{line.text} [{which} on {reported}]"
