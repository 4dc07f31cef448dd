"""Checks of devices, and of the ways between them. Nothing of CUDA is imported unless a device is to be used."""

import re
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from ringtrain.errors import DeviceError
from ringtrain.launch.binding import bind
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line, Visit
from ringtrain.launch.doctor.places import beside_device
from ringtrain.transport.awareness import STAGED, Rung
from ringtrain.transport.world import find_way, look

GIB = 1 << 30
STAGING_BYTES, STAGING_TIMES = 8 << 20, 5
SLOW_GBS = 5.0  # PCIe 3.0 on eight lanes; a GPU of today has at least twice as much
CUDA_PACKAGES = ("cupy", "nvidia-", "libucx", "cuda-")


def wanted(visit: Visit) -> bool:
    """Whether a device is to be used: it was asked for, or nothing was, and there is one."""
    return visit.device == "cuda" or (visit.device == "auto" and driver_version(visit.root) is not None)


def driver_version(root: Path) -> str | None:
    """Of NVIDIA's kernel module; None where there is none."""
    file = root / "proc/driver/nvidia/version"
    if not file.is_file():
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return found[1] if found else "of unknown version"


def models(root: Path) -> list[str]:
    """Of the GPUs of this machine, visible to this process or not."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    found = (re.search(r"Model:\s*(.+)", file.read_text()) for file in files)
    return [match[1].strip() if match else "unknown" for match in found]


def number_of(visit: Visit) -> int:
    """Which of the visible devices is this rank's. Raises DeviceError where it sees none."""
    return bind(visit.environ, visit.visible(), visit.transport.local_rank).index


def packages(visit: Visit) -> list[Line]:
    """The wheels of CUDA, by their metadata alone."""
    found = {each.name.lower(): each.version for each in distributions() if each.name}
    told = [f"{name} {found[name]}" for name in sorted(found) if name.startswith(CUDA_PACKAGES)]
    cupys = [name for name in found if re.fullmatch(r"cupy(-cuda\d+x)?", name)]
    if len(cupys) > 1:
        advice = f"they overwrite one another: pip uninstall {' '.join(sorted(cupys))}, then install the one that fits"
        return [Line(FAIL, "CUDA packages", ", ".join(told), advice)]
    return [Line(OK, "CUDA packages", ", ".join(told) or "none")]


def driver(visit: Visit) -> list[Line]:
    version = driver_version(visit.root)
    if version is not None:
        return [Line(OK, "GPU driver", version), Line(OK, "GPUs", _counted(visit))]
    if visit.device == "cuda":
        advice = "run where nvidia-smi shows a GPU; in a container, with --gpus all (docker) or --nv (apptainer)"
        return [Line(WARN, "GPU driver", "none of NVIDIA's is listed under /proc", advice)]  # WSL lists none
    return [Line(OK, "GPU driver", "none; training runs on the CPU")]


def _counted(visit: Visit) -> str:
    found = models(visit.root)
    told = ", ".join(f"{found.count(model)} × {model}" for model in dict.fromkeys(found)) or "not listed by the driver"
    mask = visit.environ.get("CUDA_VISIBLE_DEVICES")
    return told if mask is None else f"{told}; CUDA_VISIBLE_DEVICES={mask}"


def mpi_cuda(visit: Visit) -> list[Line]:
    """How device memory goes between ranks, rung by rung; collective. Before this process uses its device, which may
    not take a second process."""
    if "no MPI" in visit.transport.describe():
        return [Line(OK, "mpi-cuda", "there is no MPI")]
    if not _any(visit, wanted(visit)):
        return [*_rungs(look()), Line(OK, "mpi-cuda", "no device to send from")]
    numbers = _numbers(visit)
    if numbers is None:
        return [*_rungs(look()), Line(OK, "mpi-cuda", "no device that can be used on every rank")]
    choice = find_way(visit.transport, visit.mpi_cuda, numbers[visit.transport.rank], visit.maker)
    slower = choice.way == STAGED != visit.mpi_cuda
    advice = "an MPI that is built for CUDA may be faster: docs/cuda-aware-mpi.md" if slower else ""
    return [*_rungs(choice.rungs), Line(WARN if slower else OK, "mpi-cuda", choice.words, advice)]


def _numbers(visit: Visit) -> list[int] | None:
    """The devices of all ranks; None where one of them has none, which :func:`device` tells why."""
    try:
        own = number_of(visit)
    except DeviceError:
        own = None
    every = visit.transport.gather_json(own)
    return None if None in every else every


def _rungs(rungs: Sequence[Rung]) -> list[Line]:
    return [Line(OK, f"mpi-cuda: {rung.name}", f"{rung.answer}: {rung.why}") for rung in rungs]


def device(visit: Visit) -> list[Line]:
    """This rank's, opened; how fast memory is staged; and which ranks have one between them. Collective."""
    lines, uuid = _opened(visit) if wanted(visit) else ([], None)
    return [*lines, *_shared(visit.transport.gather_json(uuid))]


def _opened(visit: Visit) -> tuple[list[Line], str | None]:
    """What is told of it, and its UUID if it can be used."""
    try:
        number = number_of(visit)
        runtime = visit.make(number)
        uuid = runtime.facts.uuid
        return [_facts(number, runtime), beside_device(visit.root, uuid), _staging(runtime)], uuid
    except DeviceError as error:
        return [Line(FAIL if visit.device == "cuda" else WARN, "device", str(error))], None


def _shared(uuids: Sequence[str | None]) -> list[Line]:
    """``uuids``: by rank."""
    holders = [[rank for rank, own in enumerate(uuids) if own == uuid] for uuid in dict.fromkeys(uuids) if uuid]
    crowds = [", ".join(map(str, ranks)) for ranks in holders if len(ranks) > 1]
    advice = "they have its time and its memory between them: start as many ranks as there are GPUs"
    return [Line(WARN, "shared device", f"ranks {crowd} have one", advice) for crowd in crowds]


def _facts(number: int, runtime) -> Line:
    facts, (free, total) = runtime.facts, runtime.memory()
    capability, cuda, built = (".".join(map(str, pair)) for pair in (facts.capability, facts.driver, facts.runtime))
    told = f"{number}: {facts.name}, compute capability {capability}, {facts.processors} processors"
    return Line(OK, "device", f"{told}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, CUDA {cuda}, CuPy for {built}")


def _staging(runtime) -> Line:
    """The slower of both ways between pinned host memory and the device."""
    host, array, stream = runtime.pinned(STAGING_BYTES), runtime.whole(STAGING_BYTES), runtime.stream()
    slowest = 0.0
    for copy in (lambda: runtime.upload(host, array, stream), lambda: runtime.download(array, host, stream)):
        slowest = max(slowest, min(_timed(copy, stream) for _ in range(STAGING_TIMES)))
    rate = STAGING_BYTES / slowest / 1e9
    if rate < SLOW_GBS:
        advice = "a PCIe link of few lanes, or a rank on the other socket: bind it to the GPU's (nvidia-smi topo -m)"
        return Line(WARN, "pinned staging", f"{rate:.0f} GB/s", advice)
    return Line(OK, "pinned staging", f"{rate:.0f} GB/s")


def _timed(copy, stream) -> float:
    began = time.perf_counter()
    copy()
    stream.synchronize()
    return time.perf_counter() - began


def _any(visit: Visit, own: bool) -> bool:
    return any(visit.transport.gather_json(own))
