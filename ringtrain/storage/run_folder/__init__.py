"""The run folder, its lock and its outcome."""
