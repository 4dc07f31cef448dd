"""The transport between threads of one process."""
