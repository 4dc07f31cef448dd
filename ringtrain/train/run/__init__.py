"""The course of a run: iterations, evaluations, records."""
