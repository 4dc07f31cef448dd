"""The Python API: the all-reduce for other programs, on arrays of any library."""
