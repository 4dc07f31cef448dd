"""Records a script of PyTorch in a run folder as a training of ringtrain is recorded: from the steps of its optimizer,
and from the scores that it tells before a step or behind it. Nothing here imports PyTorch.
"""

import json
import math
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from ringtrain import __version__
from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import to_table
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.exchange.parts import parts_of
from ringtrain.launch.printed_metrics import SCORES, STEP
from ringtrain.launch.python_script import PART_PER_RANK, ScriptCommand
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.events import (
    Ended,
    Evaluated,
    Event,
    Exchanged,
    Failed,
    Iteration,
    Ranks,
    RanksLost,
    RunStarted,
)
from ringtrain.report.plots import draw_curves
from ringtrain.report.rates import Rates
from ringtrain.report.sinks import JsonLines, Sink, SinkGroup
from ringtrain.report.tensorboard import TensorBoard
from ringtrain.storage.run_folder.outcome import DONE, FAILED, RUNNING, WORDS, RunOutcome, read_outcome, write_outcome
from ringtrain.storage.run_folder.run_folder import RunFolder, create_run_folder
from ringtrain.train.run.records import peak_bytes
from ringtrain.train.start.header import provenance
from ringtrain.train.start.script_profile import PROFILE, profile_of
from ringtrain.transport.agree import keep_on_root
from ringtrain.transport.base import Transport

GIT = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
UNKNOWN = math.nan  # null in the log
TrafficOf = Callable[[], tuple[int | None, float | None]]


class ScriptRun:
    """The records of a script, in the folder ``command.out``; a run that is not done goes on there. Collective to
    make, but in a rank that joins the others. Raises UsageError.

    traffic: the bytes that this rank has sent so far, and the seconds for which it waited; None if they are not counted
    facts:   fields of :class:`RunStarted` that are known when the first step is done
    joins:   the ``folder_and_step`` of the others' run, in a rank that joins them

    ``folder_and_step``: of the run, and the number of its last step.
    ``steps``: made by this process
    """

    def __init__(
        self,
        command: ScriptCommand,
        transport: Transport,
        traffic: TrafficOf,
        facts: Callable[[], Mapping[str, Any]],
        joins: tuple[str, int] | None = None,
    ):
        self._command, self._transport, self._traffic, self._facts = command, transport, traffic, facts
        self._rates, self._sink = Rates(period=parts_of(command.exchange).every), SinkGroup(())
        self._started = self._last = time.perf_counter()
        self._number = self._images = self.steps = 0
        self._training_s, self._sent = 0.0, traffic()
        self._examples: int | None = None  # of the forward passes since the last step
        self._pending: dict[str, Any] | None = None  # the last iteration: scores may follow
        self._early: dict[str, float] = {}  # scores of the step under way
        self._tested: dict[str, float | None] = {"test_loss": None, "test_accuracy": None}
        self._steps_are_told = self._is_open = self._has_ended = False
        self._lost: tuple[int, ...] = ()
        self._start: dict[str, Any] = {}
        self._folder: RunFolder | None = None
        if joins is None:
            self._start = provenance(transport) | {
                "command": shlex.join(["python", "-m", "ringtrain.torch", *sys.argv[1:]]),
                "git": git_state(Path(command.name).parent),
            }
            self._folder, joins = keep_on_root(transport, self._make_folder)
        path, self._number = joins
        self._path, self._resumed_at = Path(path), self._number

    @property
    def folder_and_step(self) -> tuple[str, int]:
        return str(self._path), self._number

    def _make_folder(self) -> tuple[RunFolder, tuple[str, int]]:
        out, name, before = self._command.out, Path(self._command.name).stem, None
        with suppress(UsageError):
            before = read_outcome(out).outcome
        if before == DONE:
            raise UsageError(f"--out {out}: it holds a run that is done; name another folder")
        folder = create_run_folder(out, name, datetime.now(), resume=before is not None)
        for remark in folder.claim(resume=before is not None):
            note(remark)
        with suppress(UsageError):  # without a log that has begun
            self._number = read_run(folder.path, name).iterations
        table = to_table(TrainConfig(exchange=self._command.exchange))
        options = {key: table[key] for key in table if hasattr(self._command.exchange, key)}
        if options["shards"] == PART_PER_RANK:
            del options["shards"]
        folder.root.write(folder.config, tomli_w.dumps(options).encode())
        write_outcome(folder.path, self._outcome(RUNNING, None))
        return folder, (str(folder.path), self._number)

    # ── what the script does ──────────────────────────────────────────────────────────────────────────────────
    def forward(self, examples: int) -> None:
        """Note a forward pass of training."""
        if not self.steps and self._examples is None:
            self._last = time.perf_counter()
        self._examples = (self._examples or 0) + examples

    def step(self, lr: float = UNKNOWN) -> None:
        """Note the end of a step. The record of the one before is written now."""
        self._emit()
        now, examples, (sent, exposed_s) = time.perf_counter(), self._examples or 1, self._traffic()
        waited_s = None if exposed_s is None else exposed_s - (self._sent[1] or 0.0)
        self.steps, self._images, self._sent = self.steps + 1, self._images + examples, (sent, exposed_s)
        self._training_s += now - self._last
        self._rates.add(examples * self._transport.size, now - self._last)
        figures = {"lr": lr, "examples": examples * self._transport.size, "images_per_s": self._rates.recent()}
        self._pending = {**figures, "seconds": now - self._started, "exposed_s": waited_s, **self._early}
        self._last, self._examples, self._early = now, None, {}

    def scores(self, values: Mapping[str, float]) -> None:
        """Take scores by their names: of the step under way after a forward pass, or else of the last one."""
        if self._examples is not None:
            self._early.update(values)
            return
        if self._pending is None or self._steps_are_told:  # no optimizer of PyTorch makes steps
            self._steps_are_told = True
            self.step()
        assert self._pending is not None, "a step has been made"
        self._pending.update(values)

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────
    def _emit(self) -> None:
        values, self._pending = self._pending, None
        if values is None:
            return
        self._number = max(self._number + 1, int(values.pop(STEP, 0)))
        if self._folder is None:
            return
        tested = {name: values.pop(name, None) for name in SCORES[2:]}
        self._start = {"batch": values["examples"], "lr": values["lr"], **self._start}
        values = {"iteration": self._number, "epoch": 1, "loss": UNKNOWN, "accuracy": None, **values}
        self._handle(Iteration(**values))
        if any(value is not None for value in tested.values()):
            self._tested = tested
            self._handle(Evaluated(**tested, **{name: values[name] for name in ("iteration", "epoch", "seconds")}))

    def _handle(self, event: Event) -> None:
        """Record an event; before the first one, the start of the run."""
        if not self._is_open:
            assert self._folder is not None, "rank 0 has a folder"
            self._is_open, resumed_at, name = True, self._resumed_at or None, Path(self._command.name).name
            sinks: list[Sink] = [JsonLines(self._folder.log, resumed_at, note)]
            if self._command.tensorboard:
                sinks.append(TensorBoard(self._folder.path, self._resumed_at, note))
            self._sink = SinkGroup(sinks)
            fields: dict[str, Any] = {
                "version": __version__, "model": name, "parameters": 0, "data": f"data of {name}", "train_examples": 0,
                "test_examples": 0, "strategy": self._command.exchange.sync, "exact": False, "epochs": None,
                "ranks": self._transport.size, "nodes": self._transport.nodes, "device": "CPU", "dtype": "float32",
                "batch": 0, "optimizer": "of the script", "lr": UNKNOWN, "schedule": "of the script", "iterations": 0,
                "iterations_per_epoch": 0, "resumed_at": self._resumed_at, "seed": self._command.seed or 0,
                "folder": str(self._folder.path), "loss": "as logged",
            }  # fmt: skip
            self._sink.handle(RunStarted(**{**fields, **self._start, **self._facts()}))
        self._sink.handle(event)

    def lost(self, transport: Transport, event: RanksLost, ranks: tuple[int, ...]) -> None:
        """Record that ranks have died, and go on among the others. ranks: all that have died so far"""
        self._transport, self._lost = transport, ranks
        self._emit()
        if self._folder is not None and not self._has_ended:
            self._handle(event)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────
    def failed(self, kind: str, text: str, code: int) -> None:
        """Record the error that ends the script, on the rank that has it."""
        with suppress(RingtrainError):
            self._emit()
            write_outcome(self._path, self._outcome(WORDS.get(code, FAILED), code, text))
            if self._folder is not None:
                self._handle(Failed(error=kind, text=text))

    def measure(self, of_rank: Mapping[str, Any], exchanged: Mapping[str, Any] | None, lag: Any) -> None:
        """Measure the script. of_rank, lag: of :class:`Ranks`; exchanged: of :class:`Exchanged`, or None"""
        self._emit()
        (sent, exposed_s), seconds = self._traffic(), time.perf_counter() - self._started
        work = {"images": self._images, "updates": self.steps, "training_s": self._training_s, "exposed_s": exposed_s}
        nbytes = {"bytes_sent": sent or self._sent[0], "bytes_received": None, "peak_bytes": peak_bytes()}
        self._of_rank = {**work, **nbytes, "between_bytes": self._transport.links.between_bytes, **of_rank}
        self._lag = lag
        if exchanged is not None and self._folder is not None:
            self._handle(Exchanged(iteration=self._number, epoch=1, seconds=seconds, **exchanged))

    def keep_profile(self, medians: dict | None, module: dict) -> None:
        """Write the profile of the script's steps, of :func:`profile_of`, after :meth:`measure`. Collective."""
        every = self._transport.gather_json((socket.gethostname(), os.cpu_count() or 1, peak_bytes(), medians))
        if self._folder is None:
            return
        hosts, cores, peaks, each_medians = zip(*every, strict=True)
        if None in each_medians:
            note("no profile is written: a rank has not made two steps of a module in DistributedDataParallel")
            return
        facts = {"host_by_rank": hosts, "host_cores": min(cores), "peak_bytes": max(peaks), "ranks": len(every)}
        facts |= {name: self._start[name] for name in ("command", "batch")}
        content = profile_of(module, each_medians, facts)
        self._folder.root.write(PROFILE, json.dumps(content, indent=1).encode())

    def ended(self, code: int, weights_sha256: str = "") -> None:
        """Record the end, after :meth:`measure`. Collective."""
        every, exposed_s = self._transport.gather_json(self._of_rank), self._of_rank["exposed_s"]
        if self._folder is None or self._has_ended:  # a rank has died since, and the others do it again
            return
        self._has_ended = True
        self._handle(Ranks(**{name: [each[name] for each in every] for name in self._of_rank}, lag=self._lag))
        figures: dict[str, Any] = {
            "iterations": self._number, "epochs": 0, "ranks": self._transport.size, "weights_sha256": weights_sha256,
            "images_per_s": self._rates.overall(), "seconds": time.perf_counter() - self._started,
            **self._tested, "reason": WORDS[code],
        }  # fmt: skip
        if exposed_s is not None:
            figures["exposed_share"] = exposed_s / (self._training_s or 1.0)
        self._handle(Ended(**figures))
        self._sink.close()
        write_outcome(self._path, self._outcome(WORDS[code], code))
        draw_curves(self._path, self._folder.curves)
        self._folder.release()

    def _outcome(self, word: str, code: int | None, text: str = "") -> RunOutcome:
        return RunOutcome(word, code, self._number, self._number, self._transport.size, self._lost, text)


def note(text: str) -> None:
    sys.stderr.write(f"ringtrain: note: {text}\n")


def git_state(folder: Path) -> str | None:
    """Return the commit that a folder is at, with "-dirty" if files have changed; None outside of a repository."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "-C", str(folder), *GIT], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() or None
    return None
