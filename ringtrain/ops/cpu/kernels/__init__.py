"""Compiled loops over flat arrays, for float32 and float64. Numba is imported in this folder and nowhere else.

What they have in common:

* Arrays come flat; extents come as whole numbers. An index is wrapped in ``u`` (uint64), so that no code for
  negative indices stands in the way of vector instructions.
* Constants take the type of the array (``x.dtype.type``): a plain 0.5 would turn float32 arithmetic into float64.
* Sums may be reordered within a loop, but a NaN is never assumed away: ``0 if v <= 0 else v`` keeps it.
* Functions called from other functions live in the same file, because numba's cache looks at one file's time only.
"""
