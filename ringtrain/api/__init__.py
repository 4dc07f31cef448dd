"""The Python API: collectives and messages for other programs, on arrays of any library."""
