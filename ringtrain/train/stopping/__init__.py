"""Notes signals and other reasons to stop."""
