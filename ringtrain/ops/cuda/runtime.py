"""Values that the runtime of a device takes and gives: facts about the device, and matrices of a product."""

from dataclasses import dataclass

from ringtrain.arrays import Array


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a device: name, capability (9, 0), processors (SMs), shared_bytes (largest dynamic shared memory of a
    block), driver and runtime: their CUDA versions as (13, 0); uuid: of the device, as nvidia-smi writes it"""

    name: str
    capability: tuple[int, int]
    processors: int
    shared_bytes: int
    driver: tuple[int, int]
    runtime: tuple[int, int]
    uuid: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """``rows`` × ``columns`` elements of ``array``, row by row, ``stride`` elements from row to row (the columns,
    unless it is part of a wider matrix), from element ``start`` on. ``transposed``: rows and columns are of the
    matrix in the product, and each of its columns is a row of memory."""

    array: Array
    rows: int
    columns: int
    stride: int
    start: int = 0
    transposed: bool = False
