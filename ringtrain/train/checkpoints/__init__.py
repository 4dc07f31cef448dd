"""Saves and resumes a run."""
