"""Survival of deaths (``--elastic``): the ranks that are left redo the exchange of the step, and the script goes on.

Gradients stay with the script until their sums are complete, so that they can be exchanged again. Survivors meet in a
new world (:mod:`ringtrain.transport.mpi.ulfm_recovery`), in which process groups and engines are made anew; where a
survivor has the sums of the step already, the others take them. Rank numbers close up, so rank 0 stays what it is.
Where rank 0 dies, on which scripts print and save, all end, after a checkpoint by :func:`register`.
"""

import io
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ringtrain.errors import Interrupted, RingtrainError, StalledError, UsageError
from ringtrain.launch.python_script import ScriptCommand, fair_threads
from ringtrain.launch.reproducible import THREADS
from ringtrain.monitor.guarded_transport import bare
from ringtrain.report.events import RanksLost
from ringtrain.report.screen.words import ranks_lost
from ringtrain.storage import files
from ringtrain.torch import exact_order, run_log, stopping
from ringtrain.torch.engine import Engine
from ringtrain.torch.kept_sums import KeptSums
from ringtrain.torch.strategy_ddp import ENGINES
from ringtrain.torch.world import TorchWorld, current, enter_world
from ringtrain.train.start.recovery_state import MEMORY, REPLACE
from ringtrain.transport.base import Transport
from ringtrain.transport.fault_tolerance import REJOIN_S, end_unseen
from ringtrain.transport.world import World

LIMITS = (
    "when a rank dies, {}. What ends all: a death before the first step, of the last rank, or in a collective of the "
    "script's own; and rank 0's, with 75 after a checkpoint if the script gives ringtrain.torch.register()"
)
PLAIN = (int, float, bool, complex, str, bytes, type(None))
DISMISSED = -1  # in place of the size of a state


class ScriptSurvival:
    """The deaths of a script's run. A rank that replaces a dead one starts the script anew, alone; in its call of
    :func:`register` it joins the others, in the exchange of their next step.

    world:       of this process; ``torch_world``: the same, as PyTorch uses it
    replacement: the command that starts it
    """

    def __init__(self, world: World, torch_world: TorchWorld, command: ScriptCommand, replacement: Sequence[str]):
        self._world, self._torch, self._command, self.mode = world, torch_world, command, command.exchange.elastic
        self._replacement = list(replacement) if command.exchange.elastic == REPLACE else []
        name = command.name if command.is_module else Path(command.name).stem
        self._path = Path(command.out or ".") / f"{name}.survivors.pt"  # what survivors of rank 0 save
        self._loaded = self._path.with_suffix(".loaded.pt")  # the same, when the next start has made a step
        self._state_dict: Callable[[], Any] | None = None
        self._lost: tuple[int, ...] = ()
        self._has_lost_root = self._has_loaded = False
        self._joins_at: int | None = None  # the number of sums after which replacements join

    @property
    def limits(self) -> str:
        """What survives, and what does not, in words."""
        return LIMITS.format("a new one takes its place" if self._replacement else "the others go on")

    def survives(self, error: RingtrainError) -> bool:
        """Return whether a death caused the error."""
        return self._world.is_of_a_death(error)

    def weight(self) -> float:
        """Return by how much the gradients of this iteration count more, since those of a dead rank are missing."""
        return exact_order.weight_after_deaths()

    # ── a death ───────────────────────────────────────────────────────────────────────────────────────────────
    def recover(self, error: RingtrainError) -> None:
        """Move all engines to a world of the survivors. Raises the error if it is of no death. Collective over them,
        from wherever each is in its step."""
        began = time.perf_counter()
        while True:
            if not self.survives(error):
                raise error
            try:
                self._meet(began)
                return
            except RingtrainError as another:
                error = another

    def end(self, action: Callable[[], None], close: Callable[[], None], code: int) -> int:
        """Run what all ranks do at the end, again among the survivors where ranks die, and then ``close``. Returns the
        exit code, which is another one where rank 0 has died."""
        is_done = False
        while not is_done:
            try:
                if self._joins_at is not None:  # there is no step in which replacements could join
                    self._joins_at, self._replacement = None, []
                    self._world.transport.broadcast(np.array([DISMISSED]))
                action()
                self._world.transport.barrier()
                is_done = True
            except RingtrainError as error:
                try:
                    self.recover(error)
                except SystemExit:
                    code = Interrupted.exit_code
        if self._world.transport.rank == 0 and not code:
            self._path.unlink(missing_ok=True)
            self._loaded.unlink(missing_ok=True)
        try:
            close()
        except RingtrainError as error:
            if not self.survives(error):  # after a death the work is done all the same
                raise
        return code

    def _meet(self, began: float) -> None:
        kept = [(engine, engine.kept) for engine in ENGINES if engine.kept is not None]
        facts = {"sums": [sums.count for _, sums in kept], "handed": exact_order.handed_over()}
        size, limit_s = self._world.transport.size, max(REJOIN_S, self._torch.patience_s)  # a rank may evaluate
        expired = partial(run_log.failed, code=StalledError.exit_code, where="all")
        self._world.survive(facts, None, size, self._replacement, expired, limit_s=limit_s)
        survived = self._world.survived
        assert survived is not None, "a world without a survivor has no process"
        each = survived.facts
        ranks = [facts["rank"] for facts in each]
        self._lost += survived.lost
        self._has_lost_root |= 0 in survived.lost
        if not survived.replaced:
            handed = chain(*(facts["handed"] for facts in each))
            exact_order.go_on_among(survived.transport.rank, ranks, handed)
        whole = enter_world(self._world)
        self._torch.transport = transport = bare(whole)
        if survived.replaced:
            meet_starting_ranks(whole)
            transport = self._torch.group_of(ranks)
        self._torch.move(transport)
        for number, (engine, sums) in enumerate(kept):
            counts = [facts["sums"][number] for facts in each]
            engine.move(self._torch.group_of(range(transport.size)))
            if max(counts) > min(counts):
                sums.share(engine.transport, counts.index(max(counts)), max(counts))
        transport.barrier()
        done = max((sums.count for _, sums in kept), default=0)
        self._joins_at = done if survived.replaced else None
        event = RanksLost(
            lost=list(survived.lost),
            ranks=whole.size,
            replaced=survived.replaced,
            resumed_at=done,
            source=MEMORY,
            seconds=time.perf_counter() - began,
        )
        run_log.lost(whole, event, self._lost)
        if self._has_lost_root:
            self._end_without_root()
        if whole.rank == 0:
            sys.stderr.write(f"ringtrain: {ranks_lost(event)}\n")

    # ── replacements ──────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, engine: Engine, sums: KeptSums) -> None:
        """Let replacements join, if they are to do so in this exchange. Collective."""
        if sums.count == 0:
            self._check(engine)
        elif self._has_loaded and self._world.transport.rank == 0:  # a later start goes on from the script's checkpoint
            self._path.replace(self._loaded)
        self._has_loaded &= not sums.count
        if self._joins_at is None or sums.count < self._joins_at:
            return
        assert self._state_dict is not None, "it is checked in the first exchange"
        facts = {"iteration": engine.iteration, "sums": sums.count, "lost": self._lost}
        self._broadcast(_saved({**self._state(), **facts, "run": run_log.folder_and_step()}))
        self._enter_whole(engine, sums, sums.count)
        self._joins_at = None

    def _check(self, engine: Engine) -> None:
        """Check before the first step that a state can be saved, and that replacements can join. Collective."""
        if self._replacement and self._state_dict is None:
            raise UsageError(
                "--elastic replace starts the script anew on a new rank, which goes on from what "
                "ringtrain.torch.register(state_dict, load_state_dict) gives, and the script has not called that: call "
                "it when module and optimizer are made, or give --elastic, with which the others go on alone"
            )
        if self._replacement and len(ENGINES) != 1:
            raise UsageError(
                f"--elastic replace takes scripts with one DistributedDataParallel, and this one has {len(ENGINES)}: "
                "give --elastic, with which the others go on alone"
            )
        if self._state_dict is not None:
            _saved(self._state())

    def _state(self) -> dict[str, Any]:
        """Return the script's state, and the places in exact orders. Collective."""
        assert self._state_dict is not None, "the script has registered it"
        return {"script": self._state_dict(), "orders": exact_order.states()}

    def _take_state(self, state: Mapping[str, Any], load_state_dict: Callable[[Any], object]) -> None:
        exact_order.restore(state["orders"])
        load_state_dict(state["script"])

    def _broadcast(self, data: bytes = b"") -> bytes:
        """Return rank 0's bytes. Collective over all ranks of the world."""
        whole = self._world.transport
        array = np.frombuffer(bytearray(data if whole.rank == 0 else b""), np.uint8)
        whole.broadcast(size := np.array([array.size]))
        if size[0] == DISMISSED:
            end_unseen()
        array = array if whole.rank == 0 else np.zeros(size[0], np.uint8)
        if array.size:
            whole.broadcast(array)
        return array.tobytes()

    def _join(self, load_state_dict: Callable[[Any], object]) -> None:
        """Join the survivors, with the state of their rank 0."""
        if len(ENGINES) != 1:
            raise UsageError(
                "--elastic replace: ringtrain.torch.register() is called before DistributedDataParallel(): call it "
                "between that and the loop"
            )
        (engine,), whole = ENGINES, self._world.transport
        assert engine.kept is not None, "it comes with --elastic"
        try:
            state = torch.load(io.BytesIO(self._broadcast()), weights_only=True)
            self._enter_whole(engine, engine.kept, state["sums"])
        except RingtrainError as error:
            if self.survives(error):
                end_unseen()  # another one has died, and the others begin again without this one
            raise
        engine.iteration, self._lost = state["iteration"], tuple(state["lost"])
        if state["run"] is not None:
            run_log.begin(self._command, whole, joins=tuple(state["run"]))
        stopping.take_answer(engine.kept.stops)
        self._take_state(state, load_state_dict)

    def _enter_whole(self, engine: Engine, sums: KeptSums, number: int) -> None:
        """Exchange among all, survivors and replacements. Collective."""
        self._torch.move(bare(self._world.transport))
        engine.move(self._torch.group_of(range(self._world.transport.size)))
        sums.share(engine.transport, 0, number)

    # ── what the script registers ─────────────────────────────────────────────────────────────────────────────
    def register(self, state_dict: Callable[[], Any], load_state_dict: Callable[[Any], object]) -> None:
        """As :func:`register`."""
        self._state_dict = state_dict
        if self._world.joined and self._torch.is_apart:
            self._join(load_state_dict)
            return
        is_root = self._world.transport.rank == 0
        data = self._broadcast(self._path.read_bytes() if is_root and self._path.exists() else b"")
        if data:
            if is_root:
                sys.stderr.write(f"ringtrain: goes on from {self._path}, which the survivors of rank 0 have saved\n")
            self._has_loaded = True
            self._take_state(torch.load(io.BytesIO(data), weights_only=True), load_state_dict)

    def _end_without_root(self) -> None:
        """End the script on all survivors, after a checkpoint. Collective."""
        if self._state_dict is None:
            raise RingtrainError(
                "rank 0 has died, on which scripts print and save, and --elastic lets no other do that: start again "
                "from the script's own checkpoint. With ringtrain.torch.register(state_dict, load_state_dict) in the "
                "script the others save before they end"
            )
        state = self._state()
        if self._torch.transport.rank == 0:
            files.write(self._path, _saved(state))
            text = f"rank 0 has died: the others saved {self._path}, from which the same command goes on"
            sys.stderr.write(f"ringtrain: {text}\n")
            run_log.failed(Interrupted(text), Interrupted.exit_code, "the survivors")
        self._torch.transport.barrier()
        sys.exit(Interrupted.exit_code)


def meet_starting_ranks(transport: Transport) -> list[str]:
    """Return the hosts of all ranks, and divide the cores of a node among the threads of its ranks, unless the user has
    said how many each has. Collective."""
    hosts = transport.gather_json(socket.gethostname())
    every = transport.gather_json(sorted(os.sched_getaffinity(0)))
    if THREADS not in os.environ:
        threads = fair_threads(every[transport.rank], [every[rank] for rank in transport.neighbours])
        torch.set_num_threads(threads)
        os.environ[THREADS] = str(threads)  # for the processes that the script starts
    return hosts


def _saved(state: Mapping[str, Any]) -> bytes:
    """Return a state as ``torch.load(weights_only=True)`` reads it. Raises UsageError for what that refuses."""
    _check_plain("state_dict()", state["script"])
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def _check_plain(name: str, value) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_plain(f"{name}[{key!r}]", each)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            _check_plain(f"{name}[{number}]", each)
    elif not isinstance(value, torch.Tensor) and type(value) not in PLAIN:
        raise UsageError(
            f"{name} of ringtrain.torch.register() is a {type(value).__name__}: it takes tensors, numbers, strings, "
            "and lists and dicts of them, which are read again without running code of the file"
        )


def register(state_dict: Callable[[], Any], load_state_dict: Callable[[Any], object]) -> None:
    """Give ``--elastic`` the script's state: for a rank that replaces a dead one, and for a checkpoint where rank 0
    dies, which the next start loads. Without it do nothing. Call it on all ranks, after DistributedDataParallel() and
    before the first step.

    state_dict:      state_dict() → tensors, numbers, strings, lists and dicts of them, from which the script goes on.
                     It is called on all ranks, between backward and the optimizer's step: of step counts, those done
    load_state_dict: load_state_dict(state)
    """
    survival = current().survival
    if survival is not None:
        survival.register(state_dict, load_state_dict)
