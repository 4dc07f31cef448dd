"""Runs iterations, evaluations and records from the start of a run to its end."""
