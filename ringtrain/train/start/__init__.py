"""Starts, resumes or recovers a run from its flags."""
