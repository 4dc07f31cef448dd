"""The HDF5 file of a data set: its format, checks and statistics."""
