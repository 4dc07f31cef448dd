"""The configuration of a run, and how its sources are laid over one another."""
