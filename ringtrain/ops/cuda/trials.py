"""Trials of a variant: its seconds on the device, and the numbers that it gives.

A kernel of a few microseconds is done before Python has issued the next one, so that events around single launches
would measure Python. Work is therefore timed as a graph, several runs in one."""

from functools import partial
from statistics import median

import numpy as np

from ringtrain.errors import DeviceError, DeviceFullError
from ringtrain.ops.cuda.faults import Unable

REPEATS = 5
MOST_RUNS, ENOUGH_S = 10, 300e-6  # of a graph: fewer runs where one takes long
PIECES, PIECE = 64, 1024  # of a result that are looked at, and the elements of each


def seconds_of(device, run) -> float:
    """Return the seconds of one run on the device, after a first run: the median of :data:`REPEATS`. Raises: Unable if
    it cannot be recorded."""
    if not device.runtime.records:
        return median(_between(device, run) for _ in range(REPEATS))
    runs = min(MOST_RUNS, max(1, int(ENOUGH_S / max(_between(device, run), 1e-9))))
    replay = _recorded(device, lambda: [run() for _ in range(runs)])
    return median(_between(device, replay) for _ in range(REPEATS)) / runs


def _recorded(device, run):
    """Return the recording. It may fail at its end too, with an error that does not come from the variant itself."""
    try:
        with device.record() as graphs:
            run()
        replay = partial(graphs[0].launch, device.stream)
        replay()  # the first launch of a graph uploads it to the device
    except (Unable, DeviceFullError):
        raise
    except DeviceError as error:
        raise Unable(f"it cannot be recorded: {error}") from error
    return replay


def _between(device, run) -> float:
    start = device.stream.record(timed=True)
    run()
    end = device.stream.record(timed=True)
    end.wait()
    return end.seconds_since(start)


def sample_of(device, array) -> np.ndarray:
    """Return the elements of an array to compare, as float64: all of a small one, else slices from its start to its
    end."""
    flat = array.reshape(-1)
    length = min(PIECE, flat.size)
    count = min(PIECES, -(-flat.size // max(1, length)))
    starts = np.linspace(0, flat.size - length, count).astype(int).tolist()
    host = device.pinned("sample", count * length, array.dtype)
    for number, start in enumerate(starts):
        part = host[number * length : (number + 1) * length]
        device.runtime.download(flat[start : start + length], part, device.stream)
    device.stream.synchronize()
    return host.astype(np.float64)


def distance(values: np.ndarray, wanted: np.ndarray) -> float:
    """Return ‖given - wanted‖ / ‖wanted‖; infinite or NaN if that is no number."""
    with np.errstate(all="ignore"):
        off, size = np.linalg.norm(values - wanted), np.linalg.norm(wanted)
        return float(off / size) if size else (0.0 if off == 0 else float("inf"))
