"""Limits of axes, titles and small print that pictures and pages of runs share."""

from collections.abc import Iterable, Mapping, Sequence

from ringtrain.errors import plain
from ringtrain.humanize import plural

NAMED = 3  # hosts, dates … in small print


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


def small_print(starts: Sequence[dict]) -> str:
    """Return version, dates, hosts, device and MPI of runs, each once. ``starts``: their ``start`` records"""
    versions = few(f"ringtrain {each['version']}" for each in starts if each.get("version"))
    hosts = few(host for each in starts for host in each.get("hosts") or [])
    devices, libraries = (few(each.get(name) for each in starts) for name in ("device", "mpi"))
    return " · ".join(filter(None, (versions, few(map(date_of, starts)), hosts, devices, libraries)))


def few(values: Iterable[str | None]) -> str:
    """Return the different ones in words: the first three, and how many more there are."""
    names = list(dict.fromkeys(plain(value) for value in values if value))
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join(names[:NAMED] + more)


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
