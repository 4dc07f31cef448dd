"""Benchmarks: the measurements behind all claims about speed."""
