"""Liveness of ranks: mismatched collectives, hangs and dead ranks are found, named and ended."""
