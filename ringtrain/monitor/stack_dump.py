"""The stacks of all threads of this process as text. A rank shows them on request, and when the others wait for it."""

import os
import sys
import threading
import traceback

from ringtrain.template import joined
from ringtrain.transport.activity import Activity
from ringtrain.transport.deadline import STDERR

WATCHERS = ("hang detector", "watchdog")  # threads of this room
BENEATH = threading.__file__  # the outermost calls of every thread


def write_stacks(activity: Activity, rank: int) -> None:
    """Write the stacks to stderr, in one piece: several ranks write to one terminal at once."""
    sys.stderr.flush()
    os.write(STDERR, compose(activity, rank).encode(errors="backslashreplace"))


def compose(activity: Activity, rank: int) -> str:
    """The rank, its stage, and the stack of each thread; the newest call last."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not main)
    lines = [f"stacks of rank {rank} ({activity.host}), process {os.getpid()}: {current_stage(activity)}"]
    for thread in threads:
        if thread.ident in frames and not thread.name.startswith(WATCHERS):
            calls = traceback.extract_stack(frames[thread.ident])
            first = next((i for i, call in enumerate(calls) if call.filename != BENEATH), 0)
            lines.append(f"  thread {thread.name!r}")
            lines += [f"    {call.filename}:{call.lineno} in {call.name}" for call in calls[first:]]
    return f"{joined(lines)}\n"


def current_stage(activity: Activity) -> str:
    """ "iteration 47, in backward, layer 'conv2', in collective 102, all-reduce of …" """
    doing = activity.words()
    iteration = f"iteration {activity.iteration}" if activity.iteration else ""
    stage = f"in {doing}" if doing else ""
    return ", ".join(filter(None, [iteration, stage, activity.collective()])) or "before its first stage"
