"""Worlds of ranks that are started, watched, disturbed and ended from outside, and what they leave behind."""
