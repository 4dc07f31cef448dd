"""Transfer of bytes between ranks. ``mpi4py`` is imported only here."""
