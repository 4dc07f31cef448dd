"""The end of a process whose interpreter stands still: a library that keeps it to itself (an MPI that starts, HDF5 that
reads) waits for an answer that never comes, so that no thread of Python can say so.

The C library does it alone. A timer makes a thread of its own, which calls a function of the C library with one
argument: ``warnx`` writes a text that was made beforehand, and ``_exit`` ends the process. Before that Python's
``faulthandler``, which needs no interpreter either, writes the stacks of all threads.
"""

import ctypes
import faulthandler
import signal
import sys

from ringtrain.transport import texts

STALLED = 4  # the exit code of StalledError
SHOW = signal.SIGUSR2  # on which stacks are shown
LATER_S = 2.0  # whoever can tell more has been given so long
CLOCK_MONOTONIC, SIGEV_THREAD = 1, 2


class _Event(ctypes.Structure):
    """struct sigevent of Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 32),
    )


class _Times(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "s", "ns"))


class _Timer:
    """Calls ``function``, of the C library, with ``value``, so many seconds after it was set."""

    def __init__(self, libc, function, value: int):
        self._libc, self._id = libc, ctypes.c_void_p()
        event = _Event(value=value, notify=SIGEV_THREAD, function=ctypes.cast(function, ctypes.c_void_p))
        if libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def set(self, seconds: float) -> None:
        """0: not at all."""
        whole = int(seconds)
        times = _Times(s=whole, ns=int((seconds - whole) * 1e9))
        self._libc.timer_settime(self._id, 0, ctypes.byref(times), None)


class HardTimeout:
    """Armed by the main thread. ``who``: "rank 3 (node7)". Raises OSError, AttributeError where the C library has no
    such timers.

    ``takes``: whether that thread takes :data:`SHOW` itself meanwhile, by ``faulthandler``'s handler, since whoever
    waits for it cannot answer
    """

    def __init__(self, who: str):
        self.takes = False
        self._who, self._text = who, ctypes.create_string_buffer(1024)
        libc = ctypes.CDLL(None, use_errno=True)
        ctypes.c_char_p.in_dll(libc, "program_invocation_short_name").value = b"ringtrain"  # which warnx begins with
        self._tells = _Timer(libc, libc.warnx, ctypes.addressof(self._text))
        self._ends = _Timer(libc, libc._exit, STALLED)

    def arm(self, text: str, seconds: float) -> None:
        told = texts.HELD_TOO_LONG(who=self._who, seconds=seconds, stage=text)
        self._text.value = told.replace("%", "%%").encode()[:1023]
        faulthandler.dump_traceback_later(seconds + LATER_S, file=sys.__stderr__)
        self._tells.set(seconds + LATER_S + 0.5)
        self._ends.set(seconds + LATER_S + 1.0)
        if self.takes:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SHOW})

    def disarm(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {SHOW})
        faulthandler.cancel_dump_traceback_later()
        self._tells.set(0)
        self._ends.set(0)
