"""NVIDIA's NCCL as an external baseline: its all-reduce of a job, on the same memory as the others."""

import base64
from collections.abc import Callable

from ringtrain.bench import texts
from ringtrain.bench.measure.buffers import DEVICE_TYPES, DeviceBuffers
from ringtrain.bench.measure.trials import MeasuredAllReduce, Refusal
from ringtrain.transport.waiting import peers


class Nccl:
    """Prepares jobs (:data:`ringtrain.bench.measure.trials.Baseline`), with one communicator for all of them.

    load: () → (CuPy's module of NCCL, a new stream of CuPy's); raises ImportError if they are missing
    """

    def __init__(self, buffers: DeviceBuffers, load: Callable):
        self._buffers, self._load = buffers, load
        self._communicator = self._library = self._stream = None
        self._refusal: str | None = None

    def __call__(self, job: MeasuredAllReduce) -> Callable[[], None]:
        """Prepare a job. Collective. Raises Refusal, on all ranks alike."""
        if self._communicator is None and self._refusal is None:
            self._refusal = self._connect()
        if self._refusal:
            raise Refusal(self._refusal)
        target = self._buffers.runtime.address(job.target)
        source = target if job.source is None else self._buffers.runtime.address(job.source)
        kinds = (self._library.NCCL_FLOAT32, self._library.NCCL_FLOAT64)
        kind = kinds[DEVICE_TYPES.index(job.numbers.name)]

        def run() -> None:
            self._communicator.allReduce(
                source, target, job.target.size, kind, self._library.NCCL_SUM, self._stream.ptr
            )
            self._stream.synchronize()

        return run

    def _connect(self) -> str:
        """Connect. Returns the reason why NCCL cannot run here; "" if it can. Collective."""
        transport = self._buffers.transport
        try:
            self._library, self._stream = self._load()
            lacking = ""
        except ImportError as error:
            lacking = texts.NO_NCCL(error=error)
        told = transport.gather_json([lacking, self._buffers.runtime.facts.uuid])
        first = next((lacking for lacking, _ in told if lacking), None) or _shared([device for _, device in told])
        if first:
            return first
        own = self._library.get_unique_id() if transport.rank == 0 else b""
        (name, *_) = transport.gather_json(base64.b64encode(bytes(own)).decode())
        self._communicator = self._library.NcclCommunicator(transport.size, base64.b64decode(name), transport.rank)
        return ""

    def close(self) -> None:
        """Close the communicator. Collective."""
        if self._communicator is not None:
            self._communicator.destroy()
            self._communicator = None


def _shared(devices: list[str]) -> str:
    for device in dict.fromkeys(devices):
        ranks = [rank for rank, own in enumerate(devices) if own == device]
        if len(ranks) > 1:
            return texts.SHARED_DEVICE(ranks=peers(ranks))
    return ""


def load_from_cupy() -> tuple:
    """Return CuPy's module of NCCL and a new stream. Raises ImportError."""
    import warnings

    import cupy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning repeats the ImportError
        from cupy.cuda import nccl
    if not nccl.available:
        raise ImportError(texts.NO_LIBNCCL)
    return nccl, cupy.cuda.Stream(non_blocking=True)
