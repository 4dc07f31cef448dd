"""The launcher: run a script of PyTorch on every rank of the MPI, and end every rank if one fails."""

import math
import os
import runpy
import socket
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

import torch

from ringtrain.cli.python_script import parse_script_command
from ringtrain.cli.world import check_command, end_with, world_session
from ringtrain.errors import ConfigError, Interrupted, RingtrainError, StalledError, UsageError
from ringtrain.humanize import plural
from ringtrain.launch.python_script import (
    DEADLINE,
    ScriptCommand,
    asked_deadline,
    fair_threads,
    set_variables,
    torchrun_variables,
)
from ringtrain.launch.reproducible import THREADS
from ringtrain.monitor.guarded_transport import bare, guard_of
from ringtrain.template import Lines, joined
from ringtrain.torch import run_log
from ringtrain.torch.call_order import quoted_error
from ringtrain.torch.exact_order import check_batch, replace_shuffling
from ringtrain.torch.replacements import take_over
from ringtrain.torch.reproducible import fix_algorithms, start_with_fixed_arithmetic
from ringtrain.torch.strategy_ddp import close_engines, leave
from ringtrain.torch.world import TorchWorld
from ringtrain.transport.base import Transport
from ringtrain.transport.launch_environment import read_launch

STOPPING = (StalledError, Interrupted)  # batch scripts act on their exit codes
IN_ORDER = (0, Interrupted.exit_code)  # every rank ends with it: another may still write its part of a checkpoint
PACKAGE = str(Path(__file__).parents[1])


def main(arguments: list[str]) -> int:
    """Run the script, and return the exit code."""
    try:
        command = parse_script_command(arguments)
        if isinstance(command, str):
            if read_launch(os.environ).rank == 0:
                print(command)
            return 0
        _check_found(command)
        if command.batch is not None:
            check_batch(command.batch, read_launch(os.environ).size)
        if command.exchange.reproducible:
            start_with_fixed_arithmetic(command.isa)
        if command.deadline_s is not None:
            os.environ[DEADLINE] = str(command.deadline_s)
        with world_session() as session:
            check_command(session.world, "python -m ringtrain.torch")
            session.code = _run(command, session.world.enter())
        return session.code
    except RingtrainError as error:
        return end_with(error)


def _check_found(command: ScriptCommand) -> None:
    """Raise UsageError if the script is not there. Of a module only its outermost package is looked for: to find more
    would run that package.
    """
    if not command.is_module:
        if not Path(command.name).is_file():
            raise UsageError(f"{command.name} is no file: give the script's path, or -m and a module's name")
        return
    sys.path[0] = os.getcwd()
    if find_spec(command.name.partition(".")[0]) is None:
        raise UsageError(
            f"there is no module {command.name}, in {os.getcwd()} or among the installed ones: give -m and its name"
        )


def _run(command: ScriptCommand, transport: Transport) -> int:
    """Run the script as the program of this rank, and return its exit code. A script that fails ends all ranks."""
    guard = guard_of(transport)
    if guard is not None:  # longer than in the midst of the script, whose waits name a rank first
        guard.deadline_s = 2 * (asked_deadline(os.environ) or math.inf)
    hosts = transport.gather_json(socket.gethostname())
    set_variables(os.environ, torchrun_variables(transport.rank_info, hosts[0]))
    _set_threads(transport)
    fixed = _fix(command, transport) if command.exchange.reproducible else None
    world = TorchWorld(bare(transport), command.exchange, asked_deadline(os.environ))
    take_over(world)
    if command.batch is not None:
        replace_shuffling(command.batch, command.seed or 0)
    run_log.begin(command, transport, fixed)
    code, where = 0, f"rank {transport.rank} ({hosts[transport.rank]})"
    try:
        _execute(command)
    except SystemExit as end:
        code = _code_of(end)
        if code not in IN_ORDER:
            run_log.failed(f"sys.exit({code})", code, where)
        if code not in IN_ORDER and transport.size > 1:
            _tell(f"ringtrain: {where} ended by sys.exit({code}); all ranks end")
            transport.abort(code)
    except Exception as raised:
        error = _with_rank_states(quoted_error(raised), transport)
        no_package = isinstance(error, UsageError) and isinstance(error.__cause__, ModuleNotFoundError)
        in_words = no_package or isinstance(error, ConfigError)  # options do not suit the model: no line is wrong
        if in_words:
            _tell(f"ringtrain: {where}: {error}")
        else:
            _tell(joined([f"ringtrain: {where} failed:", Lines("".join(_traceback_of(error)).rstrip())]))
        code = getattr(error, "exit_code", 1) if in_words or isinstance(error, STOPPING) else 1
        run_log.failed(error, code, where)
        if transport.size > 1:
            transport.abort(code)
        return code
    if code in IN_ORDER:
        run_log.measure()
        run_log.ended(code, _leave(transport, command))
        world.leave()
    return code


def _fix(command: ScriptCommand, transport: Transport) -> str:
    """Fix PyTorch's algorithms, and say what is fixed. Returns it in words."""
    parts = plural(command.exchange.shards or transport.size, "part")
    fixed = f"gradients of {parts} are added in one tree; {fix_algorithms(command.isa, transport)}"
    if transport.rank == 0:
        _tell(f"ringtrain: reproducible: {fixed}")
    return fixed


def _leave(transport: Transport, command: ScriptCommand) -> str:
    """Meet the other ranks at the end of the script. Returns the hash of the weights if it is recorded or shown."""
    transport.activity.at("the end of the script")
    try:
        leave(transport)
        is_asked = command.out is not None or command.exchange.reproducible
        sha256 = run_log.weights_sha256() if is_asked else ""
        close_engines(transport)
    except StalledError as error:
        raise _with_rank_states(error, transport) from None
    if command.exchange.reproducible and sha256 and transport.rank == 0:
        _tell(f"ringtrain: weights sha256 {sha256}")
    return sha256


def _with_rank_states(error: Exception, transport: Transport) -> Exception:
    """Add what all ranks do to the error of a wait outside of collectives."""
    guard = guard_of(transport)
    if guard is None or not isinstance(error, StalledError):
        return error
    return guard.with_rank_states(error).with_traceback(error.__traceback__)


def _execute(command: ScriptCommand) -> None:
    sys.argv = [command.name, *command.arguments]
    if command.is_module:
        runpy.run_module(command.name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(command.name).resolve().parent)
        runpy.run_path(command.name, run_name="__main__")


def _set_threads(transport: Transport) -> None:
    """Divide the cores of a node among the threads of its ranks, unless the user has said how many each has."""
    every = transport.gather_json(sorted(os.sched_getaffinity(0)))
    if THREADS not in os.environ:
        threads = fair_threads(every[transport.rank], [every[rank] for rank in transport.neighbours])
        torch.set_num_threads(threads)
        os.environ[THREADS] = str(threads)  # for the processes that the script starts


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    _tell(str(end.code))
    return 1


def _traceback_of(error: Exception) -> list[str]:
    """Return the lines of a traceback from the script's first line on; for an error that ringtrain raises for a known
    reason, up to the call of ringtrain.
    """
    trace, launcher_files = error.__traceback__, {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in launcher_files:
        trace = trace.tb_next
    shown = traceback.TracebackException(type(error), error, trace)
    if isinstance(error, RingtrainError):
        shown.__suppress_context__, shown.__cause__ = True, None
        while len(shown.stack) > 1 and shown.stack[-1].filename.startswith(PACKAGE):
            shown.stack.pop()
    return list(shown.format())


def _tell(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
