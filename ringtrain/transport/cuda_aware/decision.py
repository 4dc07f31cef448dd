"""The decision to hand device memory to the MPI or to stage it: a ladder of questions.

An MPI that cannot take device memory ends in a segmentation fault, not in an error. So a doubt is a no, and the MPI's
own answer counts only after a *child* has moved device memory with it (:mod:`ringtrain.transport.cuda_aware.trial`).
The questions:

    flag    the user's flag
    query   ``MPIX_Query_cuda_support``: built with it; a no of Open MPI is about its own copies, not about UCX below it
    ucx     whether the loaded UCX has its module for CUDA
    sight   whether the ranks of a node see the same devices: a process opens memory of another one by CUDA's IPC only
            if it sees that memory's device, and a child of one rank sees what that rank sees
    trial   a child moves device memory both ways, compares it, and measures the time

Each answer is kept with its reason. The decision is printed with its reason too, above all if it is the slower way.

Source: docs/gpu.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ringtrain.errors import DeviceError, everywhere
from ringtrain.transport.base import Transport
from ringtrain.transport.launch_environment import read_launch

AUTO, DIRECT, STAGED = "auto", "direct", "staged"
YES, NO, UNKNOWN = "yes", "no", "unknown"
MASK = "CUDA_VISIBLE_DEVICES"
PER_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")  # srun's --gpus-per-task and --gpu-bind


@dataclass(frozen=True, slots=True)
class Evidence:
    """The answer to one question: its name, the answer (:data:`YES`, :data:`NO`, :data:`UNKNOWN`), and the reason."""

    name: str
    answer: str
    why: str


@dataclass(frozen=True, slots=True)
class CudaTrial:
    """The result of a child: whether device memory arrived as it was sent, the reason if not, and otherwise GB/s of
    both ways.
    """

    answer: str
    why: str
    direct_gbs: float = 0.0
    staged_gbs: float = 0.0

    @property
    def rates(self) -> str:
        return f"{self.direct_gbs:.3g} GB/s direct, {self.staged_gbs:.3g} GB/s staged"


@dataclass(frozen=True, slots=True)
class CudaDecision:
    """The chosen way and its evidence."""

    way: str  # :data:`DIRECT` or :data:`STAGED`
    why: str  # the reason in words; empty if nothing is sent
    rungs: tuple[Evidence, ...]

    @property
    def words(self) -> str:
        """Return one line for people, or an empty text."""
        if not self.why:
            return ""
        way = "goes to the MPI directly" if self.way == DIRECT else "is staged through host memory"
        return f"device memory {way}: {self.why}"


def flag_evidence(asked: str) -> Evidence:
    answer = {AUTO: UNKNOWN, DIRECT: YES, STAGED: NO}[asked]
    return Evidence("flag", answer, "--mpi-cuda is auto" if asked == AUTO else f"--mpi-cuda {asked} was given")


def device_names(environ: Mapping[str, str]) -> str:
    """Return this process's variables for visible devices as text: equal texts mean equal devices on one node."""
    if read_launch(environ).by == "srun":  # under mpirun its daemons' variables stand there
        for name in PER_TASK:
            if environ.get(name, "none") != "none":
                return f"{name}={environ[name]} of task {environ.get('SLURM_PROCID')}"
    return f"{MASK}={environ[MASK]}" if MASK in environ else "all"


def visibility_evidence(devices: Sequence[tuple[int, str]]) -> Evidence:
    """Return one answer for all ranks' (node, :func:`device_names`)."""
    for node in dict.fromkeys(node for node, _ in devices):
        names = list(dict.fromkeys(words for rank_node, words in devices if rank_node == node))
        if len(names) > 1:
            differ = f"see different devices ({names[0]}; {names[1]}), and CUDA IPC may fail between them"
            return Evidence("sight", NO, f"ranks of node {node} {differ}")
    return Evidence("sight", YES, "the ranks of a node see the same devices")


def merge_evidence(evidence: Sequence[Evidence]) -> Evidence:
    """Return one answer for all ranks' answers to one question, by rank: yes if all say yes, no if any says no."""
    answers = {rung.answer for rung in evidence}
    answer = NO if NO in answers else YES if answers == {YES} else UNKNOWN
    rank = next(rank for rank, rung in enumerate(evidence) if rung.answer == answer)
    why = evidence[rank].why if len(answers) == 1 else f"{evidence[rank].why} (rank {rank}; others differ)"
    return Evidence(evidence[rank].name, answer, why)


def worth_trying(asked: str, rungs: Sequence[Evidence]) -> bool:
    """Whether to start a child. No without any evidence for device memory: a child takes seconds, and would crash."""
    answers = {rung.name: rung.answer for rung in rungs}
    denied = answers["query"] == NO and answers["ucx"] != YES
    return asked == DIRECT or not (denied or answers["sight"] == NO)


def decide_way(asked: str, rungs: Sequence[Evidence], trial: CudaTrial | None) -> CudaDecision:
    """Return the decision. ``trial`` is None if there was none. Raises DeviceError if direct was asked for and does not
    work.
    """
    evidence = tuple(rungs)
    if trial is not None:
        evidence += (Evidence("trial", trial.answer, trial.why),)
    if asked == STAGED:
        return CudaDecision(STAGED, "--mpi-cuda staged", evidence)
    if asked == DIRECT:
        return CudaDecision(DIRECT, _as_asked(trial), evidence)
    if trial is None:
        return CudaDecision(STAGED, "; ".join(rung.why for rung in rungs if rung.answer == NO), evidence)
    if trial.answer != YES:
        failed = "device memory did not arrive in a trial" if trial.answer == NO else "no trial was possible"
        return CudaDecision(STAGED, f"{failed}: {trial.why}", evidence)
    if trial.direct_gbs < trial.staged_gbs:
        return CudaDecision(
            STAGED, f"this MPI takes device memory, but a trial was slower than staging ({trial.rates})", evidence
        )
    return CudaDecision(DIRECT, f"a trial was faster than staging ({trial.rates})", evidence)


def _as_asked(trial: CudaTrial | None) -> str:
    if trial is None or trial.answer == UNKNOWN:
        return f"--mpi-cuda direct, without a trial: {trial.why}" if trial else "--mpi-cuda direct, without a trial"
    if trial.answer == NO:
        raise DeviceError(
            f"--mpi-cuda direct: this MPI cannot take device memory here: {trial.why}. Leave --mpi-cuda out, or use "
            "an MPI that is built for CUDA (docs/gpu.md; `ringtrain doctor` shows the evidence)"
        )
    slower = ", and was slower than staging" if trial.direct_gbs < trial.staged_gbs else ""
    return f"--mpi-cuda direct; a trial succeeded{slower} ({trial.rates})"


def agree_on_way(
    transport: Transport,
    asked: str,
    look: Callable[[], Sequence[Evidence]],
    sight: Evidence,
    attempt: Callable[[], CudaTrial],
) -> CudaDecision:
    """Return the same decision on all ranks; collective. Raises DeviceError.

    look:    returns this process's evidence
    attempt: makes a trial. Only rank 0 calls it, on its own machine: the links between machines are not tried
    """
    if asked == STAGED:
        return decide_way(asked, [flag_evidence(asked)], None)
    answers = transport.gather_json([asdict(rung) for rung in look()])
    evidence = [[Evidence(**rung) for rung in rungs] for rungs in answers]
    rungs = [flag_evidence(asked), *(merge_evidence(column) for column in zip(*evidence, strict=True)), sight]
    trial = None
    if worth_trying(asked, rungs):
        outcome = transport.gather_json(asdict(attempt()) if transport.rank == 0 else None)[0]
        trial = CudaTrial(**outcome)
    try:
        return decide_way(asked, rungs, trial)
    except DeviceError as error:
        raise everywhere(error) from None
