"""NVIDIA's NCCL as an external baseline: its all-reduce of a job, on the same memory as the others."""

import base64
from collections.abc import Callable
from typing import Any

from ringtrain.bench.measure.buffers import DEVICE_TYPES, DeviceBuffers
from ringtrain.bench.measure.trials import MeasuredCollective, Refusal
from ringtrain.transport.waiting import peers


class Nccl:
    """Prepares jobs (:data:`ringtrain.bench.measure.trials.Baseline`), with one communicator for all of them.

    load: returns CuPy's module of NCCL and a stream; raises ImportError if NCCL is missing
    """

    def __init__(self, buffers: DeviceBuffers, load: Callable[[], tuple[Any, Any]]):
        self._buffers, self._load = buffers, load
        self._connected: tuple[Any, Any, Any] | None = None  # the module, the stream, a communicator
        self._refusal = ""

    def __call__(self, job: MeasuredCollective) -> Callable[[], None]:
        """Prepare a job. Collective. Raises Refusal, on all ranks alike."""
        if self._refusal:
            raise Refusal(self._refusal)
        if self._connected is None:
            self._connected = self._connect()
        library, stream, communicator = self._connected
        target = self._buffers.runtime.address(job.target)
        kind = (library.NCCL_FLOAT32, library.NCCL_FLOAT64)[DEVICE_TYPES.index(job.numbers.name)]

        def run() -> None:
            communicator.allReduce(target, target, job.target.size, kind, library.NCCL_SUM, stream.ptr)
            stream.synchronize()

        return run

    def _connect(self) -> tuple[Any, Any, Any]:
        """Connect. Collective. Raises Refusal, on all ranks alike, and remembers why."""
        transport = self._buffers.transport
        loaded, lacking = None, ""
        try:
            loaded = self._load()
        except ImportError as error:
            lacking = (
                f"NCCL is not available: {error}: pip install nvidia-nccl-cu13, for a CuPy of CUDA 12 nvidia-nccl-cu12"
            )
        answers = transport.gather_json([lacking, self._buffers.runtime.facts.uuid])
        users = {device: [rank for rank, (_, used) in enumerate(answers) if used == device] for _, device in answers}
        shared = (f"NCCL needs a device for each rank, but {peers(r)} share one" for r in users.values() if len(r) > 1)
        self._refusal = next((why for why, _ in answers if why), "") or next(shared, "")
        if loaded is None or self._refusal:
            raise Refusal(self._refusal)
        library, stream = loaded
        unique_id = library.get_unique_id() if transport.rank == 0 else b""
        (name, *_) = transport.gather_json(base64.b64encode(bytes(unique_id)).decode())
        return library, stream, library.NcclCommunicator(transport.size, base64.b64decode(name), transport.rank)

    def close(self) -> None:
        """Close the communicator. Collective."""
        if self._connected is not None:
            self._connected[2].destroy()
            self._connected = None


def load_from_cupy() -> tuple:
    """Return CuPy's module of NCCL and a new stream. Raises ImportError."""
    import warnings

    import cupy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning repeats the ImportError
        from cupy.cuda import nccl
    if not nccl.available:
        raise ImportError("CuPy does not find libnccl")
    return nccl, cupy.cuda.Stream(non_blocking=True)
