"""Where every thread of this process is, as text: what a rank shows of itself on request, and when it holds others
up."""

import os
import sys
import threading
import traceback
from types import FrameType

from ringtrain.monitor import texts as texts
from ringtrain.transport.activity import Activity

WATCHERS = ("lookout", "watchdog")  # threads that do nothing but watch
BENEATH = threading.__file__  # what every thread begins with


def show(activity: Activity, rank: int) -> None:
    """Write it, in one piece: several ranks write at once, to one terminal."""
    sys.stderr.flush()
    os.write(sys.__stderr__.fileno(), compose(activity, rank).encode(errors="backslashreplace"))


def compose(activity: Activity, rank: int) -> str:
    """Who it is and what it does, and the stack of each thread; the newest call last."""
    frames, main = sys._current_frames(), threading.main_thread()
    threads = sorted(threading.enumerate(), key=lambda thread: thread is not main)
    lines = [texts.STACKS(rank=rank, host=activity.host, process=os.getpid(), whereabouts=whereabouts(activity))]
    for thread in threads:
        if thread.ident in frames and not thread.name.startswith(WATCHERS):
            lines += [texts.THREAD(name=thread.name), *_calls(frames[thread.ident])]
    return "\n".join(lines) + "\n"


def whereabouts(activity: Activity) -> str:
    """ "iteration 47, in backward, layer 'conv2', in collective 102, all-reduce of …" """
    doing = activity.words()
    iteration = texts.ITERATION(iteration=activity.iteration) if activity.iteration else ""
    stage = texts.STAGE(stage=doing) if doing else ""
    return ", ".join(filter(None, [iteration, stage, activity.collective()])) or texts.BEFORE_FIRST


def _calls(frame: FrameType) -> list[str]:
    return [texts.CALL(file=call.filename, line=call.lineno, function=call.name) for call in _stack(frame)]


def _stack(frame: FrameType) -> list[traceback.FrameSummary]:
    """Without what every thread begins with."""
    calls = traceback.extract_stack(frame)
    first = next((i for i, call in enumerate(calls) if call.filename != BENEATH), 0)
    return calls[first:]
