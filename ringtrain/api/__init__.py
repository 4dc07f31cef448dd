"""The Python door: the all-reduce for programs of others, on arrays of any library."""
