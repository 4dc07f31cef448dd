"""The deadline: it ends a process that does not get on, whatever that waits in."""

import signal

import pytest

from ringtrain.transport import deadline
from tests.new_process import in_new_process

HELD = "def held(): ctypes.PyDLL(None).pause()  # holds the GIL, for ever\n"
FREE = "def free(): os.read(os.pipe()[0], 1)  # gives the GIL away, for ever\n"
BEGINNING = f"import ctypes, os\nfrom ringtrain.transport import deadline\n{HELD}{FREE}Deadline = deadline.Deadline\n"


def ended(program):
    """How a process ends that runs this: its exit code and what it writes to stderr."""
    done = in_new_process(BEGINNING + program)
    return done.returncode, done.stderr


WITHOUT_TIMERS = "def none(): raise AttributeError\ndeadline._library = none\n"  # of the C library: a thread has them
LATER = "\nwith Deadline(0.6, 4): free()"  # ends the process, and not that of a block which has ended


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("with Deadline(0.05, 4, '100 % stuck'): held()", (4, "ringtrain: 100 % stuck\n")),
        ("with Deadline(0.05, 4, '100 % stuck'): free()", (4, "ringtrain: 100 % stuck\n")),
        ("with Deadline(0.05, -9): held()", (-signal.SIGKILL, "")),
        (f"{WITHOUT_TIMERS}with Deadline(0.05, 4, 'stuck'): free()", (4, "ringtrain: stuck\n")),
        (f"{WITHOUT_TIMERS}with Deadline(0.05, -9, 'stuck'): free()", (-signal.SIGKILL, "ringtrain: stuck\n")),
        # The thread ends the process in its own way first; one that cannot run has its grace and no more.
        ("with Deadline(0.05, 4, 'no', first=lambda: os._exit(5)): free()", (5, "")),
        (
            "deadline.GRACE_S = 0.1\nwith Deadline(0.05, 4, 'stuck', first=lambda: os._exit(5)): held()",
            (4, "ringtrain: stuck\n"),
        ),
        (f"deadline.GAP_S = 0.01\nwith Deadline(0.1, 5, 'no'): pass{LATER}", (4, "")),
        (f"deadline.GAP_S = 0.01\nwith Deadline(0.1, 5, 'no', stacks=True): pass{LATER}", (4, "")),
        (f"deadline.GAP_S = 0.01\nwith Deadline(0.1, 5, 'no', first=lambda: os._exit(6)): pass{LATER}", (4, "")),
    ],
)
def test_a_block_that_does_not_end_is_ended_with_its_text_and_code_and_one_that_ends_is_left_alone(program, end):
    assert ended(program) == end


def test_stacks_come_before_the_text():
    code, text = ended("with Deadline(0.05, 4, 'stuck', stacks=True): held()")
    *stacks, last = text.splitlines()
    assert (code, last) == (4, "ringtrain: stuck") and any(line.endswith(" in held") for line in stacks)


def test_the_thread_has_its_grace_before_text_and_end(monkeypatch):
    seconds, set_timer = [], deadline._set_timer

    def noted(function, value, at):
        seconds.append(at)
        return set_timer(function, value, 1e6)

    monkeypatch.setattr(deadline, "_set_timer", noted)
    with deadline.Deadline(1000.0, 4, "stuck", first=print):
        assert seconds == [1000.0 + deadline.GRACE_S, 1000.0 + deadline.GRACE_S + deadline.GAP_S]


def test_a_text_is_cut_and_its_signs_are_not_formats():
    assert deadline._format("50 %").value == b"50 %%"
    assert len(deadline._format("long" * 1000).value) == deadline.TEXT_BYTES
