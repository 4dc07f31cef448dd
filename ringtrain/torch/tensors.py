"""Tensors of PyTorch as a communicator takes them: bytes to move, or numbers to reduce."""

import warnings
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import torch

from ringtrain.allreduce.dtypes import TYPES
from ringtrain.api.libraries import torch_memory
from ringtrain.errors import UsageError

OPS = {"SUM": "sum", "AVG": "mean", "MAX": "max", "MIN": "min"}
# Done from the operands of all ranks: there is no schedule for them.
FOLDS: dict[str, Callable] = {
    "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
NUMBERS = {getattr(torch, name) for name in TYPES}
SMALL = {torch.bool, torch.uint8, torch.int8, torch.int16}  # reduced as int32, and cut to their bits again
INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def operation(opts) -> str:
    """Return the name of the reduction in PyTorch's words. Raises UsageError for NCCL's own."""
    op = getattr(opts, "reduceOp", opts)
    name = getattr(op, "op", op).name
    if name == "PREMUL_SUM":
        raise UsageError(
            "PREMUL_SUM is NCCL's: multiply the tensor by the factor and use ReduceOp.SUM; in FSDP leave "
            "set_gradient_divide_factor out"
        )
    return name


class HostTensor:
    """A tensor as contiguous host memory: its own, if the host can reach it so, else a copy.

    tensor: of any device and strides
    reads:  whether its elements are wanted; else it is written alone
    """

    __slots__ = ("_tensor", "memory")

    def __init__(self, tensor: torch.Tensor, reads: bool = True):
        _check_dense(tensor)
        tensor = self.memory = self._tensor = tensor.detach()
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            _note_device(tensor.device)
            self.memory = tensor.to("cpu").contiguous() if reads else torch.empty(tensor.shape, dtype=tensor.dtype)

    @property
    def bytes(self) -> np.ndarray:
        """The memory, flat."""
        return torch_memory(self.memory.reshape(-1).view(torch.uint8))

    def settle(self) -> None:
        """Copy the memory back into the tensor, if it is a copy."""
        if self.memory is not self._tensor:
            self._tensor.copy_(self.memory)


def _check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise UsageError(f"a {tensor.layout} tensor cannot be sent: pass tensor.to_dense()")


def _note_device(device: torch.device) -> None:
    if device.type != "cpu":
        note = f"note: collectives of {device.type} tensors by ringtrain go through host memory"
        # Python shows it once for each caller
        warnings.warn(f"{note}; init_process_group('nccl') keeps them on the GPUs", stacklevel=6)


class Operand:
    """A tensor as numbers that a communicator reduces; ``numbers`` may be the tensor itself.

    tensor: of any device, strides and type
    op:     in PyTorch's words
    ranks:  whose tensors are reduced
    """

    def __init__(self, tensor: torch.Tensor, op: str, ranks: int):
        tensor = tensor.detach() if tensor.requires_grad else tensor  # the communicator knows the same object again
        _check_dense(tensor)
        _note_device(tensor.device)
        self._divisor = ranks if op == "AVG" and tensor.dtype in INTEGERS else 0
        self.op, self._tensor = OPS["SUM" if self._divisor else op], tensor
        if tensor.is_complex() and op in ("SUM", "AVG"):
            tensor = torch.view_as_real(tensor)
        if tensor.dtype in NUMBERS:
            self.numbers, self._copied = tensor, False
        elif tensor.dtype in SMALL and self.op != "mean":
            self.numbers, self._copied = tensor.to(torch.int32), True
        else:
            raise UsageError(f"{op} of {_name(tensor)} is not reduced: convert the tensor to one of {', '.join(TYPES)}")

    def finish(self, result: torch.Tensor) -> torch.Tensor:
        """Return what has been reduced as the result: a mean of integers is cut to one, as NCCL does it."""
        return result.div_(self._divisor, rounding_mode="trunc") if self._divisor else result

    def settle(self) -> None:
        """Complete the result in ``numbers``, and copy it into the tensor, if they are a copy."""
        result = self.finish(self.numbers)
        if self._copied:
            put(result, self._tensor)


def put(result: torch.Tensor, output: torch.Tensor) -> None:
    """Copy a result into a tensor of the user, whose shape and type it may have left."""
    target = output.detach()
    if target.is_complex():
        target = torch.view_as_real(target)
    numbers = result.reshape(target.shape)
    target.copy_(numbers != 0 if target.dtype is torch.bool else numbers)


def fold(every: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """Return the reduction of one tensor of each rank, in rank order. Raises UsageError."""
    if op != "PRODUCT" and (every[0].is_floating_point() or every[0].is_complex()):
        raise UsageError(f"{op} combines the bits of integers, and this tensor is {_name(every[0])}")
    return reduce(FOLDS[op], every)


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
