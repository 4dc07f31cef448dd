"""Runs one iteration on one rank."""
