"""Errors and notes of the collectives."""

from ringtrain.template import Template

# canonical
TOO_FEW_SHARDS = Template("{size} ranks cannot have a shard each of {shards}: give more shards or fewer ranks")

# catalogue
UNKNOWN_ALGORITHM = Template("unknown algorithm {name!r} (one of your own needs --plugin FILE.py): {hint}")
NOT_A_PAIR = Template("unknown algorithm {name!r}: a pair is written hierarchical:INNER:OUTER")
UNKNOWN_PART = Template("unknown algorithm {part!r} {place} in {name!r}: {hint}")
WITHIN_NODES = Template("within nodes")
ACROSS_NODES = Template("across nodes")
NO_OWNERS = Template(
    "{name!r} cannot use a wire that rounds: no rank owns a sum. Each rank adds its exact number to the other's "
    "rounded one, so ranks end with different bits. Use an algorithm with owners: {owning}"
)
UNKNOWN_GOAL = Template("unknown goal {goal!r}: {hint}")
NOT_BY_RANK = Template(
    "{name} has no {goal} that gives each of {size} ranks one row: take ring, circulant, sliced or mpi"
)
NO_HALVES = Template("{name!r} is not made of two halves and has no {goal}. These have one: {halves}")

# cost
NOT_A_TIME = Template("{name} is {value}: wanted a number of seconds, 0 or more")
COST_DEADLOCK = Template("{schedule!r} deadlocks: {left} ends of messages are left")

# draw
LEGEND = Template(
    "→1 0:2 chunks 0 and 1 go to rank 1 · ←1 +0:2 are added · ←1 0:2 overwrite · 0:2 += 4:6 within the rank"
)
NOT_A_PICTURE = Template("{path} does not name a picture: its name must end in {formats}")
NO_MATPLOTLIB = Template("matplotlib is not installed, and pictures need it: pip install 'ringtrain[plot]'")
CANNOT_WRITE = Template("{path} cannot be written: {reason}")

# execute, mapped, routed
STARTED_AGAIN = Template("{name} was started again before it finished")
EXECUTION = Template("{schedule} with tag {tag}")
SHARED = Template("an all-reduce in shared memory")
ROUTED = Template("a routed all-reduce")
TO_SEND = Template("{ranks} to send")
TO_RECEIVE = Template("{ranks} to receive")
ITS_DEVICE = Template("its device")
AWAITED = Template("{whom}: rank {rank} in {schedule}, tag {tag}, {done} of {total} messages done")
AWAITED_START = Template("{whom} to start {name}, rank {rank}")
AWAITED_END = Template("{whom} to finish its part of {name}, rank {rank}")
AWAITED_SEGMENT = Template("segment {segment} of {segments}: {awaited}")

# expressions, order
CONTRIBUTION = Template("rank {rank}'s contribution")
INPUT_CONTRIBUTION = Template("rank {rank}'s contribution in input {number}")
SHARD_GRADIENT = Template("the gradient of shard {shard}")
MISCOUNT = Template("ends with {leaf} {times} times")
DISORDER = Template("is added as {got}; wanted {wanted}")
WRONG_INPUTS = Template(
    "{name} takes {count} {arrays} of rank {rank}, which has {held}: sums of shards {ranges} of {shards}"
)

# fused
NOT_FUSED = Template(
    "{schedule!r} cannot be fused: in step {step} rank {source} sends rank {target} a partial sum or a chunk that rank "
    "{target} adds on arrival"
)
NOT_ONE_PASS = Template(
    "{plan} on rank {rank} does not add all contributions in sequence and then copy the sum to all ranks: a device "
    "does this in one pass and needs such a plan"
)
OUTSIDE_BUFFER = Template(
    "{plan}: rank {rank} touches chunk {chunk} of rank {owner}, whose input is {brings} × {chunks} chunks"
)
FUSED_HAZARD = Template(
    "{plan}: hazard: rank {rank} touches chunk {chunk} of rank {owner}'s buffer, which only rank {chunk} may touch "
    "between the waits"
)
FUSED_ORDER = Template("{where} is added in another order than on rank 0")

# messages
MESSAGES_BETWEEN = Template("{schedule!r}, rank {source} to rank {target}")
UNEVEN_ENDS = Template("{where}: {sends} sends, {recvs} receives")
OTHER_CHUNKS = Template(
    "{where}: chunks {sent} sent in step {send_step} arrive as chunks {received} in step {recv_step}"
)

# pipelined, timetable
NO_SEGMENTS = Template("a schedule cannot be pipelined in {segments} segments: at least 1 is needed")
DEADLOCK = Template("{schedule!r} deadlocks: {left} of {total} messages never travel")

# topology
NO_RANKS = Template("there are {size} ranks: at least 1 is needed")
EMPTY_NODE = Template("node {node} has no ranks: every node needs at least 1")
NOT_EACH_ONCE = Template("the nodes hold ranks {ranks}: wanted 0 to {last}, each once")
TOO_MANY_NODES = Template("{size} ranks cannot run on {nodes} nodes: wanted 1 to {size} nodes")
NODES_DISAGREE = Template("nodes of {counts} ranks have {total} ranks in all, not {ranks}: give only one of the two")

# verify
AT_STEP = Template("{schedule!r}, rank {rank}, step {step}")
AT_CHUNK = Template("{schedule}, rank {rank}, chunk {chunk}")
WRONG_RESULT = Template("{where} {wrong}")
TOO_MUCH_SENT = Template("{schedule!r}, rank {rank} sends {chunks} chunks; stated: {stated}")
UNKNOWN_PEER = Template("{where}: peer {peer} of {size} ranks")
EMPTY_SPAN = Template("{where}: span {span} is empty or negative")
SPAN_LEAVES = Template("{where}: span {span} leaves the buffer of {chunks} chunks")
RECEIVED_TWICE = Template("{where}: hazard: chunk {chunk} is received from rank {first} and rank {second} at once")
SENT_WHILE_WRITTEN = Template("{where}: hazard: chunk {chunk} is sent to rank {peer} while rank {writer} writes it")
EMPTY_SENT = Template("{where}: sends scratch {span} before data arrived there")
EMPTY_ADDED = Template("{where}: adds into scratch {chunk}, which is empty")
WAITS = Template("rank {rank} in step {step} waits for {awaited}")
STEP_OF_RANK = Template("step {step} of rank {rank}")
STUCK = Template("{schedule!r}: deadlock: {waits}")
MORE_STUCK = Template("; and {count} more")
OTHER_ORDER = Template("{where} is {done} in another order than on rank {first}: replicas would round differently")
ADDED = Template("added")
ADDED_OR_ROUNDED = Template("added or rounded")
NOT_THE_OWNERS = Template("{where} ends as {held}; wanted rank {owner}'s")
OWNER_NOT_ROUNDED = Template("{where} ends rounded, and not rounded on its owner, rank {owner}")

# shared memory, by name
UNKNOWN_OUTER = Template("unknown algorithm {name!r}: routed:OUTER names the algorithm between nodes: {hint}")
NO_MESSAGES = Template("{name!r} sends no messages that could be packed: leave the wire out, or name a schedule")
CANNOT_RUN = Template("{algorithm} cannot run here: {why}")
RUNS_INSTEAD = Template("{algorithm} cannot run here: {why}; {instead} over messages runs instead")
SEVERAL_NODES = Template("ranks are on {nodes} nodes, and memory is shared within one: use {instead}")
ON_RANKS = Template("{why}, on {peers}")
NOT_SHARED = Template("the buffer is not in memory that the ranks of a node share")
NOT_SHARED_WHY = Template("the buffer is not in memory that the ranks of a node share: {why}")
TOO_MANY_BUFFERS = Template("a device adds up the buffers of {limit} ranks at once, and the node has {size}")
NOT_ADDED = Template("it adds {known}, not {dtype}")
NO_COUNTERS = Template("shared memory has no room for the counters that ranks wait on")

# streamed
STREAMED = Template("a streamed all-reduce")
AWAITED_CHUNK = Template("{whom} for chunk {chunk} of {chunks} of {name} on rank {rank}")
AWAITED_CALL = Template("{whom} to join the {call}")
STREAM_CALL = Template("{op} of {count:,} {dtype}{carried} in chunks of {chunk:,} bytes")
CARRIED = Template(" {of}")
STREAM_CALLS_DIFFER = Template(
    "ranks make different calls: rank {rank} {call}, rank {other} {other_call}: all ranks make the same calls in the "
    "same order"
)
STREAM_ONE_NODE = Template("ranks are on {nodes} nodes, and it works within one")
STREAM_ON_HOST = Template("the buffer is not in host memory")
STREAM_TOO_MANY = Template("the node has {size} ranks, and it takes {most}")
STREAM_NO_WINDOW = Template("the ranks of the node have no memory that they share")
STREAM_NO_WINDOW_WHY = Template("the ranks of the node have no memory that they share: {why}")
STREAM_WRONG_CHUNK = Template("rank {rank} reads {found} in {what} {at} of rank {owner}, and wants {wanted}")
STREAM_RACE = Template(
    "hazard: rank {rank} at chunk {chunk} and rank {other} use {what} {at} of rank {owner}, and nothing orders them"
)
STREAM_STUCK = Template("no rank goes on: ranks are done with {chunks} chunks")
STREAM_SUM = Template(
    "rank {rank} ends with {found} in slice {part} of chunk {chunk}; wanted every contribution once, in the order of "
    "ranks"
)
