"""Bytes between ranks. ``mpi4py`` is imported here and nowhere else."""
