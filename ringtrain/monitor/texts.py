"""Errors and notes of the monitoring: mismatched collectives, stalls, and the state of all ranks."""

from ringtrain.template import Template

# diagnosis
MISMATCH = Template(
    "collective {number} is not the same on all ranks: expected, as on {ranks}: {call}{others}. All ranks must make "
    "the same calls, of the same size and type, in the same order"
)
GOT = Template("; got, on {ranks}: {call}")
ABSENT = Template("; not begun on {ranks}")
NONE_OPEN = Template("no collective: none is under way")
NOT_SEEN = Template("not seen from rank {rank}: {gap}")
OPEN = Template("collective {number}, {call}: {ranks}")
OPEN_IN_ITERATION = Template("collective {number}, {call}, iteration {iteration}: {ranks}")
NOT_JOINED = Template("{rank} has not joined it ({whereabouts})")
NOT_SEEN_IN = Template("{rank} has not been seen in it ({whereabouts})")
SILENT_IN = Template("{rank} is in it, but {silence}")
SEEN_JOINED = Template("all ranks that are seen here have joined it")
LEAST_MOVED = Template("all ranks have joined it, and {rank} is the furthest behind, after {moves} moves")
WAITS_IN = Template("{ranks} waits in it")
WAIT_IN = Template("{ranks} wait in it")
SILENT = Template("it has given no sign of life for {seconds:.3g} s: it is stopped, or its node hangs")
BEGUN_NONE = Template("it has begun none")
LAST_DONE = Template("its last is collective {number}, done")
LAST_OPEN = Template("its last is collective {number}, not done")
IN_ITERATION = Template(", in iteration {iteration}")
HAS_ENDED = Template("{whereabouts}; it has ended")
LAST_SEEN = Template("when last seen: {whereabouts}; {silence}")
IN_STAGE = Template("; it is in {stage}")
FOR_SECONDS = Template(" for {seconds:.3g} s")
ONE_BEHIND = Template("; the furthest behind is {rank}")
SEVERAL_BEHIND = Template("; the furthest behind are {ranks}")
ACTIVITIES = Template("activity of every rank:")
ACTIVITY = Template("  {rank}: {iteration}{stage}{time}{silence}")
ACTIVITY_ITERATION = Template("iteration {iteration}, ")
ENDED = Template("ended")
BETWEEN_STAGES = Template("between stages")
LAST_COLLECTIVES = Template("the last collectives of every rank:")
COLLECTIVE = Template("  {number}  {states}")
CALL_STATES = Template("{call}: {states}")
NOT_BEGUN = Template("not begun on {ranks}")
NOT_SEEN_ON = Template("not seen on {ranks}")
DONE_ON = Template("done on {ranks}")
UNDER_WAY = Template("under way on {ranks}")
UNDER_WAY_MOVES = Template("under way on {ranks} ({moves} moves)")

# guard
ALL_REDUCE = Template("all-reduce")
WATCHED = Template("{kind} of {count:,} {dtype} by {algorithm} ({op})")
WATCHED_OF = Template("{kind} of {count:,} {dtype} by {algorithm} ({op}), {carried}")
UNKNOWN_MISMATCH = Template("collective {number} is not the same on all ranks")
STALLED = Template("no progress for {seconds:g} s in {collective}")
STALLED_AWAITING = Template("no progress for {seconds:g} s in {collective}; it waits for {awaited}")
IN_COLLECTIVE = Template("in collective {number}, {call}")
ENDING = Template("ringtrain: rank {rank}: {error}")

# guarded
BROADCAST = Template("broadcast of {nbytes:,} bytes from rank {root}")
NATIVE = Template("{kind} by the MPI, root {root}")
GATHER = Template("gather of values")
BARRIER = Template("barrier")
NODE_BARRIER = Template("barrier of a node")
FINDING = Template("finding the other ranks")

# lookout
RANK = Template("rank {rank} ({host})")
TOO_LONG = Template(
    "no progress for {seconds:.3g} s in {stage}, on rank {rank} ({host}): the call does not return. See whether a file "
    "system or the network hangs on this node, or another rank hangs; if they are only slow, give a longer deadline "
    "(--deadline-s, RINGTRAIN_DEADLINE_S){everyone}"
)
HELD_TOO_LONG = Template("{who}: no progress for {seconds:g} s in {stage}: the call does not return")

# stacks
STACKS = Template("stacks of rank {rank} ({host}), process {process}: {whereabouts}")
THREAD = Template("  thread {name!r}")
CALL = Template("    {file}:{line} in {function}")
ITERATION = Template("iteration {iteration}")
STAGE = Template("in {stage}")
BEFORE_FIRST = Template("before its first stage")
