"""Errors and notes of the collectives."""

from ringtrain.template import Template

# catalogue
UNKNOWN_ALGORITHM = Template("unknown algorithm {name!r} (one of your own needs --plugin FILE.py): {hint}")


# draw
LEGEND = Template(
    "→1 0:2 chunks 0 and 1 go to rank 1 · ←1 +0:2 are added · ←1 0:2 overwrite · 0:2 += 4:6 within the rank"
)

# execute, mapped, routed
STARTED_AGAIN = Template("{name} was started again before it finished")
AWAITED_START = Template("{whom} to start {name}, rank {rank}")
AWAITED_END = Template("{whom} to finish its part of {name}, rank {rank}")

# shared memory, by name
NO_MESSAGES = Template("{name!r} sends no messages that could be packed: leave the wire out, or name a schedule")
CANNOT_RUN = Template("{algorithm} cannot run here: {why}")
NOT_ADDED = Template("it adds {known}, not {dtype}")
