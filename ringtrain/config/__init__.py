"""The configuration of a run, and the precedence of its sources."""
