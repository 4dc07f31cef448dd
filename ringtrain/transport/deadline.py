"""A time limit on a block of code, which ends the process when the time is up: the one such limit of the package.

A thread of Python cannot keep this limit: a library that holds the GIL (an MPI that starts, HDF5 that reads) may wait
for ever, and then no other thread of Python runs. So the C library keeps it. A timer of POSIX starts a thread, which
calls one function of the C library with one argument: ``warnx`` writes a text, ``_exit`` or ``raise`` ends the process.
``faulthandler`` writes the stacks; it needs no GIL either.
"""

import ctypes
import faulthandler
import os
import threading
from collections.abc import Callable
from functools import cache

GAP_S = 0.5  # between the stacks, the text and the end: each is written by then
GRACE_S = 30.0  # for `first` to end the process: an abort of all ranks may take 10 s
TEXT_BYTES = 1023
STDERR = 2
CLOCK_MONOTONIC, SIGEV_THREAD = 1, 2


class Deadline:
    """Ends the process unless the block ends in time. Use it as a context manager, or by ``start`` and ``stop``.

    seconds: from the start of the block
    code:    the exit code; a negative one is a signal, as in ``subprocess``: -9 ends the process by SIGKILL
    text:    the last line on stderr, after "ringtrain: "; none if it is empty
    stacks:  write the stacks of all threads before the text. At most one such deadline is under way in a process
    first:   first() runs in a thread of Python when the time is up, and may end the process in its own way. The
             deadline ends the process ``GRACE_S`` seconds later, if the thread does not
    """

    def __init__(
        self, seconds: float, code: int, text: str = "", stacks: bool = False, first: Callable[[], None] | None = None
    ):
        self._seconds, self._code, self._text, self._stacks, self._first = seconds, code, text, stacks, first
        self._timers: list[ctypes.c_void_p] = []
        self._threads: list[threading.Timer] = []

    def start(self) -> "Deadline":
        at = self._seconds
        if self._first is not None:
            self._set_thread(at, self._first)
            at += GRACE_S
        if self._stacks:
            faulthandler.dump_traceback_later(at, file=STDERR)
            at += GAP_S
        try:
            self._set_timers(at)
        except (OSError, AttributeError, ValueError):  # a C library without them, or too many: a thread has to do
            self._set_thread(at, self._end)
        return self

    def stop(self) -> None:
        for timer in self._timers:
            _library().timer_delete(timer)
        for thread in self._threads:
            thread.cancel()
        if self._stacks:
            faulthandler.cancel_dump_traceback_later()
        self._timers, self._threads = [], []

    def __enter__(self) -> "Deadline":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def _set_timers(self, at: float) -> None:
        libc = _library()
        if self._text:
            self._timers.append(_set_timer(libc.warnx, ctypes.addressof(_format(self._text)), at))
            at += GAP_S
        ends = libc._exit if self._code >= 0 else getattr(libc, "raise")
        self._timers.append(_set_timer(ends, abs(self._code), at))

    def _set_thread(self, at: float, action: Callable[[], None]) -> None:
        thread = threading.Timer(at, action)
        thread.daemon = True
        thread.start()
        self._threads.append(thread)

    def _end(self) -> None:
        if self._text:
            os.write(STDERR, f"ringtrain: {self._text}\n".encode(errors="backslashreplace"))
        if self._code < 0:
            os.kill(os.getpid(), -self._code)
        os._exit(self._code)


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


def _set_timer(function, value: int, seconds: float) -> ctypes.c_void_p:
    """A timer that calls ``function``, of the C library, with ``value``. Raises OSError."""
    libc, timer = _library(), ctypes.c_void_p()
    event = _Event(value=value, notify=SIGEV_THREAD, function=ctypes.cast(function, ctypes.c_void_p))
    if libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    whole = int(seconds)
    times = _Times(s=whole, ns=max(1, int((seconds - whole) * 1e9)))  # 0 in all would be no time at all
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    return timer


@cache
def _library() -> ctypes.CDLL:
    """The C library, whose messages begin with "ringtrain: " from now on. Raises OSError, ValueError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "timer_create"):  # glibc before 2.34
        libc = ctypes.CDLL("librt.so.1", use_errno=True)
    ctypes.c_char_p.in_dll(libc, "program_invocation_short_name").value = b"ringtrain"
    return libc


@cache  # for the rest of the process: a timer that fires as it is stopped still reads it
def _format(text: str):
    return ctypes.create_string_buffer(text.encode(errors="backslashreplace").replace(b"%", b"%%")[:TEXT_BYTES])
