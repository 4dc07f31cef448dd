"""Tensors of PyTorch, on the CPU or on a device."""

import sys

import numpy as np

from ringtrain.api import texts
from ringtrain.api.borrow import BorrowedArray, unreadable
from ringtrain.errors import UsageError


def lend(tensor) -> BorrowedArray:
    """Return the memory of a CPU tensor; a copy of a device's.

    Raises UsageError for a tensor that autograd watches, and for one that is not plain memory.
    """
    torch = sys.modules["torch"]  # it has made the tensor
    if tensor.requires_grad:
        raise UsageError(texts.REQUIRES_GRAD)
    name, device = str(tensor.dtype).removeprefix("torch."), tensor.device
    half = tensor.dtype == torch.bfloat16  # travels as bits: NumPy has no such type
    try:
        seen = tensor if device.type == "cpu" else tensor.to("cpu")
        host = seen.view(torch.int16).numpy().view(np.uint16) if half else seen.numpy()
    except (TypeError, RuntimeError) as error:
        raise unreadable(tensor, error, texts.AS_DENSE) from error

    def like(fresh: np.ndarray):
        made = torch.from_numpy(fresh.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(fresh)
        return made.to(device)

    def settle() -> None:
        if device.type != "cpu":
            tensor.copy_(seen)

    return BorrowedArray(host, name, like, settle)
