"""Stop a script of PyTorch in time, on all ranks at the same step."""

import atexit
import signal
from functools import cache

import torch
import torch.distributed as dist

STOPPING = (signal.SIGUSR1, signal.SIGTERM)  # of a scheduler, before it ends the job

_signals: list[int] = []  # signals that this process got
_agreed: list[bool] = []  # with --elastic the answer of the last step, which its exchange has agreed on


def should_stop(group: dist.ProcessGroup | None = None) -> bool:
    """Return whether a rank of the group got SIGUSR1 or SIGTERM: the same answer on all of its ranks. Collective.

    Call it once a step, on the main thread; if it is true save a checkpoint and end by ``sys.exit(75)``. A call
    replaces handlers of both signals that are not its own. It costs an all-reduce of one number; before
    ``init_process_group`` the answer is of this rank alone.

    Raises: ValueError on a thread that is not the main one, if it has to replace a handler
    """
    _watch()
    if not dist.is_initialized():
        return bool(_signals)
    if _agreed:
        return _agreed[-1]
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    count = torch.tensor([len(_signals)], dtype=torch.int32, device=device)
    dist.all_reduce(count, dist.ReduceOp.MAX, group)
    return bool(count.item())


def is_asked() -> bool:
    """Return whether this rank got a signal."""
    return bool(_signals)


def take_answer(answer: bool) -> None:
    """Take an answer that all ranks have agreed on, so that :func:`should_stop` exchanges nothing."""
    _agreed[:] = [answer]


def _watch() -> None:
    for number in STOPPING:
        if signal.getsignal(number) is not _note:  # Lightning puts its own in their place, and takes them away
            signal.signal(number, _note)
    _ignore_late_signal()


@cache
def _ignore_late_signal() -> None:
    """Ignore SIGUSR1 when the process ends: it may come to a rank that has stopped because another one was told, and
    Python would die of it, where the script's exit code says that there is a checkpoint."""
    atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)


def _note(number: int, frame: object) -> None:
    _signals.append(number)
