"""Readers of the sources of data sets."""
