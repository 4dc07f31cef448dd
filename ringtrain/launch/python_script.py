"""The script that ``python -m ringtrain.torch`` runs, and the variables by which launchers of PyTorch tell a script its
place. Nothing here imports PyTorch.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import flag
from ringtrain.errors import UsageError
from ringtrain.launch.printed_metrics import Metric
from ringtrain.launch.reproducible import AVX2, ISAS
from ringtrain.transport.base import RankInfo

PORT = "29500"  # torch's usual one. No process listens there
DEADLINE = "RINGTRAIN_DEADLINE_S"
SEED = "RINGTRAIN_SEED"
PART_PER_RANK = 0  # in place of --shards: with --reproducible a batch has as many parts as ranks


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A Python script with its arguments, and how its collectives run. Fields that are flags are of the launcher."""

    name: str  # the file, or the module
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    deadline_s: float | None = None  # to wait for ranks without progress; None: the script's timeout, which torch has
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)  # how DDP's ranks stay in step
    out: str | None = flag("Record the run in this folder, for `ringtrain runs`, report and compare.", kind="path")
    profile: bool = flag("Write profile.json into that folder, for `ringtrain plan --profile`.", False)
    tensorboard: bool = flag("Write scalars for TensorBoard into that folder, too.", False)
    metrics: tuple[Metric, ...] = flag(
        'Take a score from lines that rank 0 prints: "loss=loss ([0-9.]+)"; also accuracy, test_loss, test_accuracy, '
        "step. May be repeated.",
        (),
        name="metric",
        metavar="NAME=PATTERN",
    )
    seed: int | None = flag("Set RINGTRAIN_SEED, which the script may read; it keys --exact-order.", low=0)
    isa: str = flag(
        "With --reproducible: the instructions that PyTorch computes with. lowest: on every CPU, and slower.",
        AVX2,
        name="reproducible-isa",
        choices=ISAS,
    )
    batch: int | None = None  # of all ranks, in exact order; None: the script's own batches and order


OF_REDUCER = ("algorithm", "tuning", "deadline_s", "check_collectives")  # options that DDP's own reducer has too


def is_plain(config: ExchangeConfig) -> bool:
    """Return whether DDP's own reducer does all that these options ask for: a synchronous all-reduce."""
    return replace(config, **{name: getattr(ExchangeConfig(), name) for name in OF_REDUCER}) == ExchangeConfig()


def asked_deadline(environ: Mapping[str, str]) -> float | None:
    """Return the deadline that the environment sets for all of ringtrain; None without one. Raises UsageError."""
    if DEADLINE not in environ:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(environ[DEADLINE])) < 1e9:
            return seconds
    raise UsageError(f"{DEADLINE} is {environ[DEADLINE]!r}: wanted a number of seconds above 0")


def torchrun_variables(rank_info: RankInfo, address: str) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank, by its place. ``address``: the host of rank 0.

    Libraries (Lightning, accelerate) read them before Slurm's and the MPI's, which mean other things under mpirun.
    """
    return {
        "RANK": str(rank_info.rank),
        "WORLD_SIZE": str(rank_info.size),
        "LOCAL_RANK": str(rank_info.local_rank),
        "LOCAL_WORLD_SIZE": str(rank_info.local_size),
        "GROUP_RANK": str(rank_info.node),
        "GROUP_WORLD_SIZE": str(rank_info.nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank_info.rank),
        "ROLE_WORLD_SIZE": str(rank_info.size),
        "TORCHELASTIC_RUN_ID": "ringtrain",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "MASTER_ADDR": address,
        "MASTER_PORT": PORT,
    }


def set_variables(environ: MutableMapping[str, str], variables: Mapping[str, str]) -> None:
    """Set them all: a variable of an outer launcher names another place. Address and port stay if they are there."""
    kept = {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environ}
    environ.update({**variables, **kept})


def fair_threads(cores: Sequence[int], neighbours: Sequence[Sequence[int]]) -> int:
    """Return the threads for a rank's operations: its cores, divided among the ranks of its node that may run on them.

    cores:      of this rank
    neighbours: the cores of each rank of the node, this one among them
    """
    sharing = sum(bool(set(cores) & set(others)) for others in neighbours)
    return max(1, len(cores) // max(1, sharing))
