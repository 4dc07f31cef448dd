"""Errors of the Python interface."""

from ringtrain.template import Template

# communicator
ALL_REDUCE = Template("allreduce, {request}")
FORKED = Template(
    "the communicator is of the process that this one was forked from, and is used there alone: hand the arrays to "
    "it, or start more ranks with mpirun"
)
THE_ARRAY = Template("the array")
OUT = Template("out")
