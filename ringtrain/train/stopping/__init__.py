"""Signals and other reasons to stop."""
