"""Errors and notes of training that a user sees."""

from ringtrain.template import Template

# load
THE_MODEL = Template("the model in the checkpoint")

# model.py
THE_ARRAY = Template("the array")


# divergence, run, records: values that are not finite
FIRST_LAYER = Template("the first layer with a non-finite value is {layer!r} (on rank {rank}){cause}")
ITS_CAUSE = Template(", {cause}")


# replica_check
DIFFERING = Template(
    "replicas differ {when}: {who}. The first difference is in {what} of {span!r}, elements {first} to {last} of "
    "{count}; at {index} there is {values}. Every rank made the same updates, so memory, the network or a processor of "
    "another kind is at fault: check that node. This state is not saved; go on from an earlier checkpoint with --resume"
)
OF_THE_OPTIMIZER = Template("the optimizer's {name}")


# resume
FORMER_RUN = Template("the run that goes on")
FIXED = Template(
    "the run that goes on has {key} = {before!r}, not {now!r}: its examples, its optimizer's state or its best "
    "checkpoint depend on that, so leave it out; to change it, start a new run"
)
