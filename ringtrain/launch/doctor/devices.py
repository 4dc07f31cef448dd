"""Checks of devices, and of messages from their memory. Imports nothing of CUDA unless the run needs a device."""

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

from ringtrain.errors import DeviceError
from ringtrain.launch.binding import bind, sharing_ranks
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
    texts = (path.read_text() for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")))
    return [match[1].strip() if (match := re.search(r"Model:\s*(.+)", text)) else "unknown" for text in texts]


def number_of(context: DoctorContext) -> int:
    """Return this rank's device among the visible ones. Raises DeviceError if it sees none."""
    return bind(context.environ, context.visible(), context.transport.local_rank)


def packages(context: DoctorContext) -> Iterator[Line]:
    """Show the wheels of CUDA, by their metadata alone."""
    versions = {each.name.lower(): each.version for each in distributions() if each.name}
    names = [f"{name} {versions[name]}" for name in sorted(versions) if name.startswith(CUDA_PACKAGES)]
    cupys = [name for name in versions if re.fullmatch(r"cupy(-cuda\d+x)?", name)]
    advice = f"they overwrite one another: pip uninstall {' '.join(sorted(cupys))}, then install the one that fits"
    yield line("CUDA packages", ", ".join(names) or "none", advice if len(cupys) > 1 else None, FAIL)


def driver(context: DoctorContext) -> Iterator[Line]:
    """Show the driver and the GPUs."""
    if (version := driver_version(context.root)) is not None:
        models, mask = gpu_models(context.root), context.environ.get("CUDA_VISIBLE_DEVICES")
        names = ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))
        setting = "" if mask is None else f"; CUDA_VISIBLE_DEVICES={mask}"
        yield from (line("GPU driver", version), line("GPUs", (names or "not listed by the driver") + setting))
    elif context.device == "cuda":
        advice = "run where nvidia-smi shows a GPU; in a container, with --gpus all (docker) or --nv (apptainer)"
        yield line("GPU driver", "none of NVIDIA's is listed under /proc", advice)  # WSL lists none
    else:
        yield line("GPU driver", "none; training runs on the CPU")


def mpi_cuda(context: DoctorContext) -> Sequence[Line]:
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
    advice = "an MPI that is built for CUDA may be faster: docs/gpu.md"
    return _way(choice.rungs, choice.words, advice if choice.way == STAGED != context.mpi_cuda else None)


def _way(rungs: Sequence[Evidence], words: str, advice: str | None = None) -> list[Line]:
    evidence = [line(f"mpi-cuda: {rung.name}", f"{rung.answer}: {rung.why}") for rung in rungs]
    return [*evidence, line("mpi-cuda", words, advice)]


def device(context: DoctorContext) -> Iterator[Line]:
    """Open this rank's device, and find ranks that share one; collective."""
    uuid = None
    if device_wanted(context):
        try:
            runtime = context.make(number := number_of(context))
            uuid = runtime.facts.uuid
            yield _facts(number, runtime)
        except DeviceError as error:
            yield Line(FAIL if context.device == "cuda" else WARN, "device", str(error))
    advice = "they share its time and its memory: start as many ranks as there are GPUs"
    for ranks in sharing_ranks(context.transport.gather_json(uuid)):
        yield line("shared device", f"ranks {', '.join(map(str, ranks))} share one", advice)


def _facts(number: int, runtime) -> Line:
    facts, (free, total) = runtime.facts, runtime.memory()
    capability, cuda, built = (".".join(map(str, pair)) for pair in (facts.capability, facts.driver, facts.runtime))
    return line(
        "device",
        f"{number}: {facts.name}, compute capability {capability}, {facts.processors} processors, "
        f"{free / GIB:.1f} of {total / GIB:.1f} GiB free, CUDA {cuda}, CuPy for {built}",
    )
