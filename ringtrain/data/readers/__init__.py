"""Readers of the sources that a data set is made from."""
