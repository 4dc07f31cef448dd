"""Where every thread of this process is, as text: what a rank shows of itself on request, and when it holds others
up."""

import os
import sys
import threading
import traceback
from types import FrameType

from ringtrain.transport.activity import Activity


def show(activity: Activity, rank: int) -> None:
    """Write it, in one piece: several ranks write at once, to one terminal."""
    sys.stderr.flush()
    os.write(sys.__stderr__.fileno(), compose(activity, rank).encode(errors="backslashreplace"))


def compose(activity: Activity, rank: int) -> str:
    """Who it is and what it does, and the stack of each thread but the caller's; the newest call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [f"stacks of rank {rank} ({activity.host}), process {os.getpid()}: {whereabouts(activity)}"]
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            lines += [f"  thread {names.get(ident, ident)!r}", *_calls(frame)]
    return "\n".join(lines) + "\n"


def whereabouts(activity: Activity) -> str:
    """ "iteration 47, in backward, layer 'conv2', in collective 102, all-reduce of …" """
    doing = activity.words()
    told = [f"iteration {activity.iteration}" if activity.iteration else "", f"in {doing}" if doing else ""]
    return ", ".join(filter(None, [*told, activity.collective()])) or "before its first stage"


def _calls(frame: FrameType) -> list[str]:
    return [f"    {call.filename}:{call.lineno} in {call.name}" for call in traceback.extract_stack(frame)]
