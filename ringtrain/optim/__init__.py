"""Optimizers and learning rate policies."""
