"""Checks of devices, and of messages of their memory. Imports nothing of CUDA unless a device is to be used."""

import re
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from ringtrain.errors import DeviceError
from ringtrain.launch import texts
from ringtrain.launch.binding import bind
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line, Visit
from ringtrain.transport.cuda_aware.decision import STAGED, Evidence
from ringtrain.transport.world import find_way, look

GIB = 1 << 30
STAGING_BYTES, STAGING_TIMES = 8 << 20, 5
SLOW_GBS = 5.0  # PCIe 3.0 on eight lanes; a GPU of today has at least twice as much
CUDA_PACKAGES = ("cupy", "nvidia-", "libucx", "cuda-")


def wanted(visit: Visit) -> bool:
    """Whether a device is to be used: by --device cuda, or by auto with a driver."""
    return visit.device == "cuda" or (visit.device == "auto" and driver_version(visit.root) is not None)


def driver_version(root: Path) -> str | None:
    """Of NVIDIA's kernel module; None where there is none."""
    file = root / "proc/driver/nvidia/version"
    if not file.is_file():
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return found[1] if found else texts.DRIVER_UNKNOWN


def models(root: Path) -> list[str]:
    """Of the GPUs of this machine, visible to this process or not."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    found = (re.search(r"Model:\s*(.+)", file.read_text()) for file in files)
    return [match[1].strip() if match else "unknown" for match in found]


def number_of(visit: Visit) -> int:
    """This rank's device among the visible ones. Raises DeviceError if it sees none."""
    return bind(visit.environ, visit.visible(), visit.transport.local_rank).index


def packages(visit: Visit) -> list[Line]:
    """The wheels of CUDA, by their metadata alone."""
    found = {each.name.lower(): each.version for each in distributions() if each.name}
    told = [f"{name} {found[name]}" for name in sorted(found) if name.startswith(CUDA_PACKAGES)]
    cupys = [name for name in found if re.fullmatch(r"cupy(-cuda\d+x)?", name)]
    if len(cupys) > 1:
        advice = texts.CUPY_TWICE(names=" ".join(sorted(cupys)))
        return [Line(FAIL, "CUDA packages", ", ".join(told), advice)]
    return [Line(OK, "CUDA packages", ", ".join(told) or texts.NO_PACKAGES)]


def driver(visit: Visit) -> list[Line]:
    version = driver_version(visit.root)
    if version is not None:
        return [Line(OK, "GPU driver", version), Line(OK, "GPUs", _counted(visit))]
    if visit.device == "cuda":
        return [Line(WARN, "GPU driver", texts.DRIVER_NOT_LISTED, texts.DRIVER_RUN)]  # WSL lists none
    return [Line(OK, "GPU driver", texts.DRIVER_NONE)]


def _counted(visit: Visit) -> str:
    found = models(visit.root)
    told = ", ".join(f"{found.count(model)} × {model}" for model in dict.fromkeys(found)) or texts.GPUS_NOT_LISTED
    mask = visit.environ.get("CUDA_VISIBLE_DEVICES")
    return told if mask is None else texts.GPUS_MASKED(gpus=told, mask=mask)


def mpi_cuda(visit: Visit) -> list[Line]:
    """How device memory goes between ranks, rung by rung; collective. Before this process uses its device, which may
    not take a second process."""
    if "no MPI" in visit.transport.describe():
        return [Line(OK, "mpi-cuda", texts.MPI_CUDA_NO_MPI)]
    if not _any(visit, wanted(visit)):
        return [*_rungs(look()), Line(OK, "mpi-cuda", texts.MPI_CUDA_NO_DEVICE)]
    numbers = _numbers(visit)
    if numbers is None:
        return [*_rungs(look()), Line(OK, "mpi-cuda", texts.MPI_CUDA_NOT_ALL)]
    choice = find_way(visit.transport, visit.mpi_cuda, numbers[visit.transport.rank], visit.maker)
    slower = choice.way == STAGED != visit.mpi_cuda
    advice = texts.MPI_CUDA_STAGED if slower else ""
    return [*_rungs(choice.rungs), Line(WARN if slower else OK, "mpi-cuda", choice.words, advice)]


def _numbers(visit: Visit) -> list[int] | None:
    """The devices of all ranks; None if one has none: :func:`device` says why."""
    try:
        own = number_of(visit)
    except DeviceError:
        own = None
    every = visit.transport.gather_json(own)
    return None if None in every else every


def _rungs(rungs: Sequence[Evidence]) -> list[Line]:
    return [Line(OK, f"mpi-cuda: {rung.name}", texts.RUNG(answer=rung.answer, why=rung.why)) for rung in rungs]


def device(visit: Visit) -> list[Line]:
    """Open this rank's device, time staging, and find ranks that share one; collective."""
    lines, uuid = _opened(visit) if wanted(visit) else ([], None)
    return [*lines, *_shared(visit.transport.gather_json(uuid))]


def _opened(visit: Visit) -> tuple[list[Line], str | None]:
    """Its lines, and its UUID if it can be used."""
    try:
        number = number_of(visit)
        runtime = visit.make(number)
        return [_facts(number, runtime), _staging(runtime)], runtime.facts.uuid
    except DeviceError as error:
        return [Line(FAIL if visit.device == "cuda" else WARN, "device", str(error))], None


def _shared(uuids: Sequence[str | None]) -> list[Line]:
    """``uuids``: by rank."""
    holders = [[rank for rank, own in enumerate(uuids) if own == uuid] for uuid in dict.fromkeys(uuids) if uuid]
    crowds = [", ".join(map(str, ranks)) for ranks in holders if len(ranks) > 1]
    return [Line(WARN, "shared device", texts.DEVICE_SHARED(ranks=crowd), texts.DEVICE_FEWER) for crowd in crowds]


def _facts(number: int, runtime) -> Line:
    facts, (free, total) = runtime.facts, runtime.memory()
    capability, cuda, built = (".".join(map(str, pair)) for pair in (facts.capability, facts.driver, facts.runtime))
    known = {"name": facts.name, "capability": capability, "processors": facts.processors, "cuda": cuda, "built": built}
    return Line(OK, "device", texts.DEVICE(number=number, free=free / GIB, total=total / GIB, **known))


def _staging(runtime) -> Line:
    """The slower of both ways between pinned host memory and the device."""
    host, array, stream = runtime.pinned(STAGING_BYTES), runtime.whole(STAGING_BYTES), runtime.stream()
    slowest = 0.0
    for copy in (lambda: runtime.upload(host, array, stream), lambda: runtime.download(array, host, stream)):
        slowest = max(slowest, min(_timed(copy, stream) for _ in range(STAGING_TIMES)))
    rate = STAGING_BYTES / slowest / 1e9
    if rate < SLOW_GBS:
        return Line(WARN, "pinned staging", texts.STAGING(rate=rate), texts.STAGING_SLOW)
    return Line(OK, "pinned staging", texts.STAGING(rate=rate))


def _timed(copy, stream) -> float:
    began = time.perf_counter()
    copy()
    stream.synchronize()
    return time.perf_counter() - began


def _any(visit: Visit, own: bool) -> bool:
    return any(visit.transport.gather_json(own))
