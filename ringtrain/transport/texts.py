"""Errors and notes of the transports."""

from ringtrain.template import Template

# waiting, and what is awaited
AWAITED_PEERS = Template("{peers} to {verb} (tag {tag})")
AWAITED_ALLREDUCE = Template("all ranks to all-reduce")


# handles
SHARING_MEMORY = Template("sharing memory")

# ipc
CLOSE = Template("close device memory")


# single messages
SIZES_DIFFER = Template("rank {source} sends {sent} bytes where rank {target} expects {expected} (tag {tag})")

# survival, tolerance
START_TOLERANT = Template("start with `mpirun --with-ft ulfm`")
NOT_SURVIVED = Template("--elastic survives only a later death: start the run again with the same command")
