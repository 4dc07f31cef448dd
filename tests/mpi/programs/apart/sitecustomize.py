"""Loaded by Python itself: no memory that processes share, so that ranks of one node are as those of several."""

import os


def no_memory(*arguments):
    raise OSError(38, "Function not implemented")


os.memfd_create = no_memory
