"""Data sets of image files, in folders or tar shards, decoded when they are read."""
