"""Whether this MPI can be handed the memory of a device, and whether it should be: a ladder of questions.

An MPI that cannot ends in a segmentation fault, not in an error. So a doubt is a no, and what an MPI says of itself is
believed only when a *child* has moved device memory by it (:mod:`ringtrain.transport.cuda_aware.trial`). The rungs:

    flag    what the user asked for
    kinds   the MPI's info key ``mpi_memory_alloc_kinds``: a yes where it names cuda; its absence proves nothing
    query   ``MPIX_Query_cuda_support``: built with it; a no of Open MPI speaks of its own copies, not of a UCX below it
    ucx     whether the UCX that is loaded has its module for CUDA
    sight   whether the ranks of a node see the same devices: a child of one of them could not find out
    trial   a child moves device memory both ways and compares, and times

Each answer is kept with its reason. What is chosen is said with its reason too, above all where it is the slower way.

Source: MPI 4.1, section 12.4.3 (memory allocation kinds); docs/gpu.md for the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ringtrain.errors import DeviceError, everywhere
from ringtrain.transport import texts
from ringtrain.transport.base import Transport

AUTO, DIRECT, STAGED = "auto", "direct", "staged"
YES, NO, UNKNOWN = "yes", "no", "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One question: its name, the answer (:data:`YES`, :data:`NO`, :data:`UNKNOWN`), and why."""

    name: str
    answer: str
    why: str


@dataclass(frozen=True, slots=True)
class CudaTrial:
    """What a child found: whether device memory arrived as it was sent, why not, and GB/s of both ways where it did."""

    answer: str
    why: str
    direct_gbs: float = 0.0
    staged_gbs: float = 0.0

    @property
    def rates(self) -> str:
        return texts.RATES(direct=self.direct_gbs, staged=self.staged_gbs)


@dataclass(frozen=True, slots=True)
class CudaDecision:
    """``way``: :data:`DIRECT` or :data:`STAGED`; ``why``, in words; and the rungs that were asked. There is no why$
    where nothing is sent."""

    way: str
    why: str
    rungs: tuple[Evidence, ...]

    @property
    def words(self) -> str:
        """One line for people, or none."""
        if not self.why:
            return ""
        return (texts.DIRECT_IN_USE if self.way == DIRECT else texts.STAGED_IN_USE)(why=self.why)


def flag(asked: str) -> Evidence:
    answer = {AUTO: UNKNOWN, DIRECT: YES, STAGED: NO}[asked]
    return Evidence("flag", answer, texts.NOT_ASKED if asked == AUTO else texts.ASKED(way=asked))


def merge(own: Sequence[Evidence]) -> Evidence:
    """One rung of all ranks' answers to one question, by rank: yes where all say yes, no where any says no."""
    answers = {rung.answer for rung in own}
    answer = NO if NO in answers else YES if answers == {YES} else UNKNOWN
    rank = next(rank for rank, rung in enumerate(own) if rung.answer == answer)
    why = own[rank].why if len(answers) == 1 else texts.OTHERS_DIFFER(why=own[rank].why, rank=rank)
    return Evidence(own[rank].name, answer, why)


def worth_trying(asked: str, rungs: Sequence[Evidence]) -> bool:
    """Whether a child should be asked. Not where nothing speaks for it: it takes seconds, and would end in a crash."""
    answers = {rung.name: rung.answer for rung in rungs}
    denied = answers["query"] == NO and answers["kinds"] != YES and answers["ucx"] != YES
    return asked == DIRECT or not (denied or answers["sight"] == NO)


def choose(asked: str, rungs: Sequence[Evidence], trial: CudaTrial | None) -> CudaDecision:
    """``trial`` is None where none was made. Raises DeviceError where direct was asked for and does not work."""
    told = tuple(rungs)
    if trial is not None:
        told += (Evidence("trial", trial.answer, trial.why),)
    if asked == STAGED:
        return CudaDecision(STAGED, texts.AS_ASKED_STAGED, told)
    if asked == DIRECT:
        return CudaDecision(DIRECT, _as_asked(trial), told)
    if trial is None:
        return CudaDecision(STAGED, _denial(rungs), told)
    if trial.answer != YES:
        failed = texts.TRIAL_FAILED if trial.answer == NO else texts.NO_TRIAL
        return CudaDecision(STAGED, failed(why=trial.why), told)
    if trial.direct_gbs < trial.staged_gbs:
        return CudaDecision(STAGED, texts.DIRECT_SLOWER(rates=trial.rates), told)
    return CudaDecision(DIRECT, texts.DIRECT_FASTER(rates=trial.rates), told)


def _as_asked(trial: CudaTrial | None) -> str:
    if trial is None or trial.answer == UNKNOWN:
        return texts.AS_ASKED_NO_TRIAL(why=trial.why) if trial else texts.AS_ASKED_UNTRIED
    if trial.answer == NO:
        raise DeviceError(texts.DIRECT_REFUSED(why=trial.why))
    tried = texts.AS_ASKED_SLOWER if trial.direct_gbs < trial.staged_gbs else texts.AS_ASKED_FASTER
    return tried(rates=trial.rates)


def _denial(rungs: Sequence[Evidence]) -> str:
    return "; ".join(rung.why for rung in rungs if rung.answer == NO)


def agree_on_way(
    transport: Transport,
    asked: str,
    look: Callable[[], Sequence[Evidence]],
    sight: Evidence,
    attempt: Callable[[], CudaTrial],
) -> CudaDecision:
    """The same choice on all ranks; collective. ``look()`` are this process's rungs; ``attempt()`` makes a trial, which
    rank 0 alone does: of its machine, so that what lies between machines is not tried. Raises DeviceError."""
    if asked == STAGED:
        return choose(asked, [flag(asked)], None)
    every = transport.gather_json([asdict(rung) for rung in look()])
    own = [[Evidence(**rung) for rung in rungs] for rungs in every]
    rungs = [flag(asked), *(merge(column) for column in zip(*own, strict=True)), sight]
    trial = None
    if worth_trying(asked, rungs):
        found = transport.gather_json(asdict(attempt()) if transport.rank == 0 else None)[0]
        trial = CudaTrial(**found)
    try:
        return choose(asked, rungs, trial)
    except DeviceError as error:
        raise everywhere(error) from None
