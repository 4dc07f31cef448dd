"""Checkpoint files, their seal and their reader."""
