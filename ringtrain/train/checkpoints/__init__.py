"""Checkpoints of a run: saving, resuming, the outcome file."""
