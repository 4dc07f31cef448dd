"""The deadline: it ends a process that does not get on, whatever that waits in."""

import signal
import subprocess
import sys

import pytest

from ringtrain.transport import deadline

PATIENCE_S = 60
HELD = "def held(): ctypes.PyDLL(None).pause()  # holds the GIL, for ever\n"
FREE = "def free(): os.read(os.pipe()[0], 1)  # gives the GIL away, for ever\n"
BEGINNING = f"import ctypes, os\nfrom ringtrain.transport import deadline\n{HELD}{FREE}Deadline = deadline.Deadline\n"


def ended(program):
    """How a process ends that runs this: its exit code and what it writes to stderr."""
    command = [sys.executable, "-c", BEGINNING + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, done.stderr


@pytest.mark.parametrize("call", ["held", "free"])
def test_a_block_that_does_not_end_is_ended_with_its_text_and_code(call):
    assert ended(f"with Deadline(0.05, 4, '100 % stuck'): {call}()") == (4, "ringtrain: 100 % stuck\n")


def test_stacks_come_before_the_text():
    code, text = ended("with Deadline(0.05, 4, 'stuck', stacks=True): held()")
    *stacks, last = text.splitlines()
    assert (code, last) == (4, "ringtrain: stuck") and any(line.endswith(" in held") for line in stacks)


def test_the_end_may_be_a_signal():
    assert ended("with Deadline(0.05, -9): held()") == (-signal.SIGKILL, "")


@pytest.mark.parametrize("how", ["", "stacks=True", "first=lambda: os._exit(6)"])
def test_a_block_that_ends_is_left_alone(how):
    """A later deadline ends the process, and not that of the block."""
    program = f"deadline.GAP_S = 0.01\nwith Deadline(0.1, 5, 'no', {how}): pass\nwith Deadline(0.6, 4): free()"
    assert ended(program) == (4, "")


def test_a_thread_may_end_the_process_in_its_own_way_first():
    assert ended("with Deadline(0.05, 4, 'no', first=lambda: os._exit(5)): free()") == (5, "")


def test_the_thread_has_its_grace_before_text_and_end(monkeypatch):
    seconds, set_timer = [], deadline._set_timer

    def noted(function, value, at):
        seconds.append(at)
        return set_timer(function, value, 1e6)

    monkeypatch.setattr(deadline, "_set_timer", noted)
    with deadline.Deadline(1000.0, 4, "stuck", first=print):
        assert seconds == [1000.0 + deadline.GRACE_S, 1000.0 + deadline.GRACE_S + deadline.GAP_S]


def test_a_thread_that_cannot_run_is_not_waited_for_longer_than_its_grace():
    program = "deadline.GRACE_S = 0.1\nwith Deadline(0.05, 4, 'stuck', first=lambda: os._exit(5)): held()"
    assert ended(program) == (4, "ringtrain: stuck\n")


@pytest.mark.parametrize("code", [4, -signal.SIGKILL])
def test_without_timers_of_the_c_library_a_thread_ends_the_process(code):
    program = (
        f"def none(): raise AttributeError\ndeadline._library = none\nwith Deadline(0.05, {code}, 'stuck'): free()"
    )
    assert ended(program) == (code, "ringtrain: stuck\n")


def test_a_text_is_cut_and_its_signs_are_not_formats():
    assert deadline._format("50 %").value == b"50 %%"
    assert len(deadline._format("long" * 1000).value) == deadline.TEXT_BYTES
