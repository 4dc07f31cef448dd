"""Errors and notes of the collectives."""

# catalogue
UNKNOWN_ALGORITHM = "unknown algorithm {name!r} (one of your own needs --plugin FILE.py): {hint}"


# draw
LEGEND = "→1 0:2 chunks 0 and 1 go to rank 1 · ←1 +0:2 are added · ←1 0:2 overwrite · 0:2 += 4:6 within the rank"

# execute, mapped, routed
STARTED_AGAIN = "{name} was started again before it finished"
AWAITED_START = "{whom} to start {name}, rank {rank}"
AWAITED_END = "{whom} to finish its part of {name}, rank {rank}"

# shared memory, by name
NO_MESSAGES = "{name!r} sends no messages that could be packed: leave the wire out, or name a schedule"
CANNOT_RUN = "{algorithm} cannot run here: {why}"
NOT_ADDED = "it adds {known}, not {dtype}"
