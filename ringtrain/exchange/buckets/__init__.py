"""Buckets of gradients: reduced as backward completes them, applied as they arrive."""
