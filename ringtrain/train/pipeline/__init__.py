"""Runs the two ends of a pipeline: front ranks, and ranks of fully connected layers."""
