"""The launcher: run a script of PyTorch on every rank of the MPI, and end every rank if one fails."""

import os
import runpy
import sys
import traceback
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ringtrain.child import child_command
from ringtrain.cli.python_script import parse_script_command
from ringtrain.cli.world import check_command, end_with, world_session
from ringtrain.errors import ConfigError, Interrupted, RingtrainError, StalledError, UsageError
from ringtrain.humanize import plural
from ringtrain.launch.python_script import (
    DEADLINE,
    SEED,
    ScriptCommand,
    asked_deadline,
    set_variables,
    torchrun_variables,
)
from ringtrain.monitor.guarded_transport import bare, guard_of
from ringtrain.template import Lines, joined
from ringtrain.torch import run_log
from ringtrain.torch.call_order import quoted_error
from ringtrain.torch.exact_order import check_batch, replace_shuffling
from ringtrain.torch.replacements import take_over
from ringtrain.torch.reproducible import fix_algorithms, start_with_fixed_arithmetic
from ringtrain.torch.strategy_ddp import close_engines, leave
from ringtrain.torch.survival import ScriptSurvival, meet_starting_ranks
from ringtrain.torch.world import TorchWorld, enter_world
from ringtrain.train.start.recovery_state import check_elastic
from ringtrain.transport.base import Transport
from ringtrain.transport.fault_tolerance import end_unseen
from ringtrain.transport.launch_environment import read_launch
from ringtrain.transport.loopback import Loopback
from ringtrain.transport.world import World

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
            session.code = _run(command, session.world)
        return session.code
    except RingtrainError as error:
        return end_with(error)


def _check_found(command: ScriptCommand) -> None:
    """Raise UsageError if the script is not there. Of a module only its outermost package is looked for: to find more
    would run that package."""
    if not command.is_module:
        if not Path(command.name).is_file():
            raise UsageError(f"{command.name} is no file: give the script's path, or -m and a module's name")
        return
    sys.path[0] = os.getcwd()
    if find_spec(command.name.partition(".")[0]) is None:
        raise UsageError(
            f"there is no module {command.name}, in {os.getcwd()} or among the installed ones: give -m and its name"
        )


def _run(command: ScriptCommand, process_world: World) -> int:
    """Run the script as the program of this rank, and return its exit code. A script that fails ends all ranks."""
    transport, hosts = _enter(process_world)
    set_variables(os.environ, torchrun_variables(transport.rank_info, hosts[0]))
    fixed = _fix(command, transport) if command.exchange.reproducible else None
    if command.seed is not None:
        os.environ[SEED] = str(command.seed)
    place = (transport.rank, transport.size) if process_world.joined else None
    alone = Loopback() if process_world.joined else bare(transport)
    world = TorchWorld(alone, command.exchange, asked_deadline(os.environ), place)
    if command.exchange.elastic is not None:
        check_elastic(command.exchange, transport, only_run=True)
        replacement = child_command("ringtrain.torch", *sys.argv[1:])
        world.survival = ScriptSurvival(process_world, world, command, replacement)
        if transport.rank == 0:
            _tell(f"ringtrain: --elastic: {world.survival.limits}")
    take_over(world)
    if command.batch is not None:
        replace_shuffling(command.batch, command.seed or 0)
    if not process_world.joined:
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
            process_world.transport.abort(code)
    except Exception as raised:
        error = _with_rank_states(quoted_error(raised), process_world.transport)
        no_package = isinstance(error, UsageError) and isinstance(error.__cause__, ModuleNotFoundError)
        in_words = no_package or isinstance(error, ConfigError)  # options do not suit the model: no line is wrong
        if in_words:
            _tell(f"ringtrain: {where}: {error}")
        else:
            _tell(joined([f"ringtrain: {where} failed:", Lines("".join(_traceback_of(error)).rstrip())]))
        code = getattr(error, "exit_code", 1) if in_words or isinstance(error, STOPPING) else 1
        run_log.failed(error, code, where)
        if transport.size > 1:
            process_world.transport.abort(code)
        return code
    if code in IN_ORDER:
        run_log.measure()
        if world.survival is None:
            _end(process_world, command, code)
            _close(process_world, world)
        else:
            actions = partial(_end, process_world, command, code), partial(_close, process_world, world)
            code = world.survival.end(*actions, code)
    return code


def _enter(process_world: World) -> tuple[Transport, list[str]]:
    """Return the transport, and the hosts of all ranks. Collective."""
    try:
        transport = enter_world(process_world)
        return transport, meet_starting_ranks(transport)
    except RingtrainError as error:
        if process_world.joined and process_world.is_of_a_death(error):
            end_unseen()  # the others begin again without this one
        raise


def _fix(command: ScriptCommand, transport: Transport) -> str:
    """Fix PyTorch's algorithms, and say what is fixed. Returns it in words."""
    parts = plural(command.exchange.shards or transport.size, "part")
    fixed = f"gradients of {parts} are added in one tree; {fix_algorithms(command.isa, transport)}"
    if transport.rank == 0:
        _tell(f"ringtrain: reproducible: {fixed}")
    return fixed


def _end(process_world: World, command: ScriptCommand, code: int) -> None:
    """Meet the other ranks at the end of the script, and record it."""
    transport = process_world.transport
    transport.activity.at("the end of the script")
    try:
        leave(transport)
        is_asked = command.out is not None or command.exchange.reproducible
        sha256 = run_log.weights_sha256() if is_asked else ""
        run_log.ended(code, sha256)
    except StalledError as error:
        raise _with_rank_states(error, transport) from None
    if command.exchange.reproducible and sha256 and transport.rank == 0:
        _tell(f"ringtrain: weights sha256 {sha256}")


def _close(process_world: World, world: TorchWorld) -> None:
    """Free what engines and process groups hold. Collective."""
    transport = process_world.transport
    try:
        close_engines(transport)
    except StalledError as error:
        raise _with_rank_states(error, transport) from None
    world.leave()


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


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    _tell(str(end.code))
    return 1


def _traceback_of(error: Exception) -> list[str]:
    """Return the lines of a traceback from the script's first line on; for an error that ringtrain raises for a known
    reason, up to the call of ringtrain."""
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
