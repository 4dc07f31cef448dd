"""Synchronisation strategies, one a file."""
