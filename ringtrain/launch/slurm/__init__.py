"""Batch scripts for Slurm, and the end of a job's time."""
