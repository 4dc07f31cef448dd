"""Checks of devices, and of messages from their memory. Imports nothing of CUDA unless the run needs a device."""

import re
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from ringtrain.errors import DeviceError
from ringtrain.launch.binding import bind
from ringtrain.launch.doctor.doctor import FAIL, WARN, DoctorContext, Line, line
from ringtrain.transport.cuda_aware.decision import STAGED, Evidence
from ringtrain.transport.world import find_way, look

GIB = 1 << 30
CUDA_PACKAGES = ("cupy", "nvidia-", "libucx", "cuda-")


def device_wanted(context: DoctorContext) -> bool:
    """Return whether the run needs a device: with --device cuda, or with auto and a driver."""
    return context.device == "cuda" or (context.device == "auto" and driver_version(context.root) is not None)


def driver_version(root: Path) -> str | None:
    """Return the version of NVIDIA's kernel module; None without one."""
    file = root / "proc/driver/nvidia/version"
    if not file.is_file():
        return None
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return match[1] if match else "of unknown version"


def gpu_models(root: Path) -> list[str]:
    """Return the models of this machine's GPUs, visible to this process or not."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    matches = (re.search(r"Model:\s*(.+)", file.read_text()) for file in files)
    return [match[1].strip() if match else "unknown" for match in matches]


def number_of(context: DoctorContext) -> int:
    """Return this rank's device among the visible ones. Raises DeviceError if it sees none."""
    return bind(context.environ, context.visible(), context.transport.local_rank)


def packages(context: DoctorContext) -> list[Line]:
    """Show the wheels of CUDA, by their metadata alone."""
    versions = {each.name.lower(): each.version for each in distributions() if each.name}
    names = [f"{name} {versions[name]}" for name in sorted(versions) if name.startswith(CUDA_PACKAGES)]
    cupys = [name for name in versions if re.fullmatch(r"cupy(-cuda\d+x)?", name)]
    twice = (
        f"they overwrite one another: pip uninstall {' '.join(sorted(cupys))}, then install the one that fits"
        if len(cupys) > 1
        else None
    )
    return [line("CUDA packages", ", ".join(names) or "none", twice, FAIL)]


def driver(context: DoctorContext) -> list[Line]:
    """Show the driver and the GPUs."""
    version = driver_version(context.root)
    if version is not None:
        return [line("GPU driver", version), line("GPUs", _counted(context))]
    if context.device == "cuda":
        return [
            line(
                "GPU driver",
                "none of NVIDIA's is listed under /proc",
                "run where nvidia-smi shows a GPU; in a container, with --gpus all (docker) or --nv (apptainer)",
            )
        ]  # WSL lists none
    return [line("GPU driver", "none; training runs on the CPU")]


def _counted(context: DoctorContext) -> str:
    models = gpu_models(context.root)
    names = (
        ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models)) or "not listed by the driver"
    )
    mask = context.environ.get("CUDA_VISIBLE_DEVICES")
    return names if mask is None else f"{names}; CUDA_VISIBLE_DEVICES={mask}"


def mpi_cuda(context: DoctorContext) -> list[Line]:
    """Check how device memory travels between ranks, one way after another; collective. Runs before this process uses
    its device, which may admit no second process.
    """
    if "no MPI" in context.transport.describe():
        return [line("mpi-cuda", "there is no MPI")]
    if not any(context.transport.gather_json(device_wanted(context))):
        return _way(look(), "no device to send from")
    try:
        number = number_of(context)
    except DeviceError:  # :func:`device` says why
        number = None
    numbers = context.transport.gather_json(number)
    if None in numbers:
        return _way(look(), "no device that can be used on every rank")
    choice = find_way(context.transport, context.mpi_cuda, numbers[context.transport.rank], context.maker)
    slower = choice.way == STAGED != context.mpi_cuda
    return _way(
        choice.rungs, choice.words, "an MPI that is built for CUDA may be faster: docs/gpu.md" if slower else None
    )


def _way(rungs: Sequence[Evidence], words: str, advice: str | None = None) -> list[Line]:
    evidence = [line(f"mpi-cuda: {rung.name}", f"{rung.answer}: {rung.why}") for rung in rungs]
    return [*evidence, line("mpi-cuda", words, advice)]


def device(context: DoctorContext) -> list[Line]:
    """Open this rank's device, and find ranks that share one; collective."""
    lines: list[Line] = []
    uuid = None
    if device_wanted(context):
        try:
            number = number_of(context)
            runtime = context.make(number)
            uuid, lines = runtime.facts.uuid, [_facts(number, runtime)]
        except DeviceError as error:
            lines = [Line(FAIL if context.device == "cuda" else WARN, "device", str(error))]
    uuids = context.transport.gather_json(uuid)
    holders = [[rank for rank, uuid in enumerate(uuids) if uuid == each] for each in dict.fromkeys(uuids) if each]
    crowds = [", ".join(map(str, ranks)) for ranks in holders if len(ranks) > 1]
    shared = [
        line(
            "shared device",
            f"ranks {crowd} share one",
            "they share its time and its memory: start as many ranks as there are GPUs",
        )
        for crowd in crowds
    ]
    return [*lines, *shared]


def _facts(number: int, runtime) -> Line:
    facts, (free, total) = runtime.facts, runtime.memory()
    capability, cuda, built = (".".join(map(str, pair)) for pair in (facts.capability, facts.driver, facts.runtime))
    return line(
        "device",
        f"{number}: {facts.name}, compute capability {capability}, {facts.processors} processors, "
        f"{free / GIB:.1f} of {total / GIB:.1f} GiB free, CUDA {cuda}, CuPy for {built}",
    )
