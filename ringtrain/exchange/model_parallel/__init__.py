"""Fully connected layers divided among ranks, or on ranks of their own."""
