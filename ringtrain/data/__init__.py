"""Data sets: readers make them from common sources, every node opens them once, and batches come out."""
