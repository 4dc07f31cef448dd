"""Proofs that schedules and plans compute the sum."""
