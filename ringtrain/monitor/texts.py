"""Errors and notes of the monitoring: mismatched collectives, stalls, and the state of all ranks."""

from ringtrain.template import Template

# diagnosis
NOT_SEEN = Template("not seen from rank {rank}: {gap}")

# guard
WATCHED = Template("{kind} of {count:,} {dtype} by {algorithm} ({op})")
