"""Every schedule by its name."""

from collections.abc import Callable

from ringtrain.collectives.ring import ring
from ringtrain.collectives.schedule import Schedule
from ringtrain.collectives.star import star
from ringtrain.errors import UsageError, nearest

SCHEDULES: dict[str, Callable[[int], Schedule]] = {"ring": ring, "star": star}


def make_schedule(name: str, size: int) -> Schedule:
    """The schedule of that name for ``size`` ranks. Raises UsageError for a name that is not there."""
    if name not in SCHEDULES:
        raise UsageError(f"unknown algorithm {name!r}: {nearest(name, SCHEDULES)}")
    return SCHEDULES[name](size)
