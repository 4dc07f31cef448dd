"""Checks of devices, and of messages from their memory. Imports nothing of CUDA unless the run needs a device."""

import re
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from ringtrain.errors import DeviceError
from ringtrain.launch import texts
from ringtrain.launch.binding import bind
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, DoctorContext, Line
from ringtrain.transport.cuda_aware.decision import STAGED, Evidence
from ringtrain.transport.world import find_way, look

GIB = 1 << 30
STAGING_BYTES, STAGING_TIMES = 8 << 20, 5
SLOW_GBS = 5.0  # PCIe 3.0 on eight lanes; a GPU of today has at least twice as much
CUDA_PACKAGES = ("cupy", "nvidia-", "libucx", "cuda-")


def device_wanted(context: DoctorContext) -> bool:
    """Return whether the run needs a device: with --device cuda, or with auto and a driver."""
    return context.device == "cuda" or (context.device == "auto" and driver_version(context.root) is not None)


def driver_version(root: Path) -> str | None:
    """Return the version of NVIDIA's kernel module; None without one."""
    file = root / "proc/driver/nvidia/version"
    if not file.is_file():
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return found[1] if found else "of unknown version"


def gpu_models(root: Path) -> list[str]:
    """Return the models of this machine's GPUs, visible to this process or not."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    found = (re.search(r"Model:\s*(.+)", file.read_text()) for file in files)
    return [match[1].strip() if match else "unknown" for match in found]


def number_of(context: DoctorContext) -> int:
    """Return this rank's device among the visible ones. Raises DeviceError if it sees none."""
    return bind(context.environ, context.visible(), context.transport.local_rank).index


def packages(context: DoctorContext) -> list[Line]:
    """Show the wheels of CUDA, by their metadata alone."""
    found = {each.name.lower(): each.version for each in distributions() if each.name}
    names = [f"{name} {found[name]}" for name in sorted(found) if name.startswith(CUDA_PACKAGES)]
    cupys = [name for name in found if re.fullmatch(r"cupy(-cuda\d+x)?", name)]
    if len(cupys) > 1:
        advice = f"they overwrite one another: pip uninstall {' '.join(sorted(cupys))}, then install the one that fits"
        return [Line(FAIL, "CUDA packages", ", ".join(names), advice)]
    return [Line(OK, "CUDA packages", ", ".join(names) or "none")]


def driver(context: DoctorContext) -> list[Line]:
    """Show the driver and the GPUs."""
    version = driver_version(context.root)
    if version is not None:
        return [Line(OK, "GPU driver", version), Line(OK, "GPUs", _counted(context))]
    if context.device == "cuda":
        return [
            Line(
                WARN,
                "GPU driver",
                "none of NVIDIA's is listed under /proc",
                "run where nvidia-smi shows a GPU; in a container, with --gpus all (docker) or --nv (apptainer)",
            )
        ]  # WSL lists none
    return [Line(OK, "GPU driver", "none; training runs on the CPU")]


def _counted(context: DoctorContext) -> str:
    found = gpu_models(context.root)
    names = ", ".join(f"{found.count(model)} × {model}" for model in dict.fromkeys(found)) or "not listed by the driver"
    mask = context.environ.get("CUDA_VISIBLE_DEVICES")
    return names if mask is None else f"{names}; CUDA_VISIBLE_DEVICES={mask}"


def mpi_cuda(context: DoctorContext) -> list[Line]:
    """Check how device memory travels between ranks, one way after another; collective. Runs before this process uses
    its device, which may admit no second process.
    """
    if "no MPI" in context.transport.describe():
        return [Line(OK, "mpi-cuda", "there is no MPI")]
    if not any(context.transport.gather_json(device_wanted(context))):
        return [*_rungs(look()), Line(OK, "mpi-cuda", "no device to send from")]
    numbers = _numbers(context)
    if numbers is None:
        return [*_rungs(look()), Line(OK, "mpi-cuda", "no device that can be used on every rank")]
    choice = find_way(context.transport, context.mpi_cuda, numbers[context.transport.rank], context.maker)
    slower = choice.way == STAGED != context.mpi_cuda
    advice = "an MPI that is built for CUDA may be faster: docs/gpu.md" if slower else ""
    return [*_rungs(choice.rungs), Line(WARN if slower else OK, "mpi-cuda", choice.words, advice)]


def _numbers(context: DoctorContext) -> list[int] | None:
    """Return the devices of all ranks; None if one has none: :func:`device` says why."""
    try:
        own = number_of(context)
    except DeviceError:
        own = None
    every = context.transport.gather_json(own)
    return None if None in every else every


def _rungs(rungs: Sequence[Evidence]) -> list[Line]:
    return [Line(OK, f"mpi-cuda: {rung.name}", f"{rung.answer}: {rung.why}") for rung in rungs]


def device(context: DoctorContext) -> list[Line]:
    """Open this rank's device, time staging, and find ranks that share one; collective."""
    lines, uuid = _opened(context) if device_wanted(context) else ([], None)
    return [*lines, *_shared(context.transport.gather_json(uuid))]


def _opened(context: DoctorContext) -> tuple[list[Line], str | None]:
    """Return the device's lines, and its UUID if it is usable."""
    try:
        number = number_of(context)
        runtime = context.make(number)
        return [_facts(number, runtime), _staging(runtime)], runtime.facts.uuid
    except DeviceError as error:
        return [Line(FAIL if context.device == "cuda" else WARN, "device", str(error))], None


def _shared(uuids: Sequence[str | None]) -> list[Line]:
    """Return lines for devices that ranks share. ``uuids``: by rank"""
    holders = [[rank for rank, own in enumerate(uuids) if own == uuid] for uuid in dict.fromkeys(uuids) if uuid]
    crowds = [", ".join(map(str, ranks)) for ranks in holders if len(ranks) > 1]
    return [
        Line(
            WARN,
            "shared device",
            f"ranks {crowd} share one",
            "they share its time and its memory: start as many ranks as there are GPUs",
        )
        for crowd in crowds
    ]


def _facts(number: int, runtime) -> Line:
    facts, (free, total) = runtime.facts, runtime.memory()
    capability, cuda, built = (".".join(map(str, pair)) for pair in (facts.capability, facts.driver, facts.runtime))
    return Line(
        OK,
        "device",
        f"{number}: {facts.name}, compute capability {capability}, {facts.processors} processors, "
        f"{free / GIB:.1f} of {total / GIB:.1f} GiB free, CUDA {cuda}, CuPy for {built}",
    )


def _staging(runtime) -> Line:
    """Return the slower rate of both ways between pinned host memory and the device."""
    host, array, stream = runtime.pinned(STAGING_BYTES), runtime.whole(STAGING_BYTES), runtime.stream()
    slowest = 0.0
    for copy in (lambda: runtime.upload(host, array, stream), lambda: runtime.download(array, host, stream)):
        slowest = max(slowest, min(_timed(copy, stream) for _ in range(STAGING_TIMES)))
    rate = STAGING_BYTES / slowest / 1e9
    if rate < SLOW_GBS:
        return Line(
            WARN,
            "pinned staging",
            texts.STAGING(rate=rate),
            "a PCIe link of few lanes, or a rank on the other socket: bind it to the GPU's (nvidia-smi topo -m)",
        )
    return Line(OK, "pinned staging", texts.STAGING(rate=rate))


def _timed(copy, stream) -> float:
    began = time.perf_counter()
    copy()
    stream.synchronize()
    return time.perf_counter() - began
