"""Saves and resumes a run, and writes its outcome file."""
