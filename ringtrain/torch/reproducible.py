"""The same bits for a script: fixed threads, instruction set and algorithms of PyTorch, and the parts of a batch."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ringtrain.data.batches.keys import PARTS, make_key
from ringtrain.errors import UsageError
from ringtrain.humanize import plural
from ringtrain.launch.python_script import SEED
from ringtrain.launch.reproducible import LOWEST, THREADS, fixed_variables
from ringtrain.ops.cpu.compile import cpu_flags
from ringtrain.torch.strategy_ddp import in_use
from ringtrain.transport.agree import agree
from ringtrain.transport.base import Transport

Batch = TypeVar("Batch")


def start_with_fixed_arithmetic(isa: str) -> None:
    """Start this process anew with the environment that fixes PyTorch's arithmetic, unless it has it: PyTorch is
    loaded, and has read its environment. Before the MPI starts. Raises UsageError."""
    variables = fixed_variables(isa, os.environ, cpu_flags())
    if any(os.environ.get(name) != value for name, value in variables.items()):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


def fix_algorithms(isa: str, transport: Transport) -> str:
    """Let PyTorch take deterministic algorithms alone, and check that all ranks compute alike. Returns what is fixed,
    in words. Collective. Raises UsageError."""
    torch.use_deterministic_algorithms(True)
    if isa == LOWEST:
        torch.backends.nnpack.set_flags(False)  # it looks at the CPU itself
    fixed = {
        "PyTorch": torch.__version__,
        "threads": os.environ[THREADS],
        "instruction set": isa,
        "capability of the CPU in PyTorch": torch.backends.cpu.get_cpu_capability(),
    }
    agree(transport, fixed)
    return f"PyTorch {torch.__version__}, {isa.upper()}, {plural(int(os.environ[THREADS]), 'thread')} a rank"


def parts(batch: Batch) -> Iterator[Batch]:
    """Yield this rank's parts of a batch, for ``--reproducible --shards V``: forward and backward stand in the loop,
    and the step behind it.

    batch: of this rank: a tensor, or tensors in tuples, lists and dicts, whose first axes count the examples

    Each rank has as many of the V parts of the global batch. A part's loss is the mean over its examples; its gradient
    counts 1/V, and all are added in one tree: the bits depend on the V parts, and not on the ranks that have them.
    PyTorch's random numbers, as of dropout, are seeded by (RINGTRAIN_SEED, step, part) within a part, and go on behind
    it as if it had drawn none. Without these options the batch is the only part. Raises UsageError.
    """
    engines = in_use()
    count = max((engine.batch.of_rank for engine in engines), default=1)
    if count == 1 and not any(engine.config.reproducible for engine in engines):
        yield batch
        return
    if any(gradient.any() for engine in engines for _, gradient in engine.gradients()):
        raise UsageError(
            "parts() is called when parameters have gradients: call zero_grad() before it, and step() behind its loop"
        )
    leaves, structure = tree_flatten(batch)
    edges = _edges([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], count)
    state = torch.get_rng_state()
    first, iteration = engines[0].transport.rank * count, engines[0].iteration
    for number, (start, stop) in enumerate(edges):
        for engine in engines:
            engine.batch.begin(number)
        torch.manual_seed(make_key(PARTS, int(os.environ.get(SEED, 0)), iteration, first + number))
        # A copy begins at an aligned address, as a whole batch does: kernels may add in another order elsewhere.
        part = [leaf[start:stop].clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        yield tree_unflatten(part, structure)
        torch.set_rng_state(state)
    for engine in engines:
        engine.batch.end()


def _edges(tensors: Sequence[torch.Tensor], count: int) -> list[tuple[int, int]]:
    """Return (start, stop) of each of ``count`` equal parts of the examples. Raises UsageError."""
    lengths = {len(tensor) for tensor in tensors if tensor.ndim}
    if len(lengths) != 1 or not all(tensor.ndim for tensor in tensors):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensor"
        raise UsageError(
            f"parts() got {shapes}: give tensors whose first axes count the examples of one batch, alone or in tuples, "
            "lists and dicts"
        )
    (length,) = lengths
    if length % count:
        raise UsageError(
            f"parts() got {plural(length, 'example')}, and this rank has {plural(count, 'part')} of equal size: give a "
            f"multiple of {count} (DataLoader(drop_last=True) leaves a smaller last batch out)"
        )
    size = length // count
    return [(number * size, (number + 1) * size) for number in range(count)]
