"""Compiled loops over flat arrays, for float32 and float64. Numba is imported in this folder, nowhere else.

What they have in common:

* Arrays come flat; extents come as whole numbers. An index is wrapped in ``u`` (uint64), so that no code for
  negative indices stands in the way of vector instructions.
* Constants take the type of the array (``x.dtype.type``): a plain 0.5 would make float32 arithmetic float64.
* Sums may be reordered within a loop, but a NaN is never assumed away: ``0 if v <= 0 else v`` keeps it.
* A kernel calls only kernels of its own file: numba's cache looks at the time of that one file.
"""
