"""Whether the MPI takes device memory, and whether it should."""
