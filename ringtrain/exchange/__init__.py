"""Synchronisation strategies: who exchanges what with whom, and when the optimizer is applied."""
