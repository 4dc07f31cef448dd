"""Errors and notes of the all-reduces: their names, number types, wires, tuning files and automatic choice."""

from ringtrain.template import Template

# choice
ONE_RANK = Template("one rank has nothing to exchange")
HOST_TUNING = Template("tuning files are for host memory")
NO_TUNING = Template("no tuning file")
NO_TIME = Template("the tuning file has no time of an algorithm that can run here")
CHOSEN = Template("{basis} {time}")
CHOSEN_AS_FOR = Template("{basis} as for {group} {time}")
WITHIN = Template(", within {near:.0%} of {fastest} ({time})")
NEXT = Template("; {name} {time}")
USUAL = Template("{reason}: the default, {layout}")
USUAL_UP_TO = Template("{reason}: the default up to {size}, {layout}")
USUAL_ABOVE = Template("{reason}: the default above {size}, {layout}")
LEAST_LATENCY = Template("; it has the least latency")
NO_MESSAGES = Template("; it sends no messages")
TWO_ROUNDS = Template("; it takes 2 rounds of messages")
ONLY_BETWEEN_NODES = Template("; it sends messages only between nodes")
LEAST_BETWEEN_NODES = Template("; it sends the fewest bytes between nodes")
PASSED_OVER = Template("; not {name}: {why}")
RING_SENDS = Template("; ring: each rank sends {factor:.3g} x the buffer in {rounds} rounds")

# machine
DIFFERENCE = Template("  {field}: {there} there, {here} here")
LAYOUT = Template("{ranks} on {nodes}")

# native
NO_BFLOAT16 = Template("MPI has no bfloat16: it would add the bits as integers")
NOT_REDUCED = Template("MPI does not reduce {dtype} by {op}: {error}")

# reductions
UNKNOWN_ALGORITHM = Template("unknown algorithm {name!r} (one of your own needs --plugin FILE.py): {hint}")
SENDS_UNPACKED = Template(
    "{name!r}, the MPI's own all-reduce, sends a buffer without packing: leave the wire out, or name a schedule"
)
WIRE_TYPE = Template("a wire of {wire} carries float32, and this is {dtype}: leave the wire out")
WIRE_SUMS = Template("a wire of {wire} carries sums, and this is {op}: leave the wire out")
SINGLE_RANK = Template("there is one rank")
SINGLE_NODE = Template("there is one node")
SEVERAL_NODES = Template("there are {nodes} nodes")
NO_MPI_TYPE = Template("MPI has no {dtype}")

# tuning
NOT_TUNING = Template("{where} is not a tuning file, it has no {title!r}: `ringtrain tune` makes one")
OTHER_FORMAT = Template("{where} has format {found!r}, and this ringtrain reads {format}: tune again")
NOT_OBJECT = Template("{where} is {found!r}; wanted an object")
NO_ROWS = Template("{where} has no rows: tune again")
NO_FIELD = Template("{where} has no {name!r}: tune again")
WRONG_FIELD = Template("{where}.{name} is {value!r}; wanted {wanted}")
AN_OBJECT = Template("an object")
A_LIST = Template("a list")
A_TEXT = Template("a text")
A_BOOLEAN = Template("true or false")
A_COUNT = Template("a whole number above 0")
A_NUMBER = Template("a number, not below 0; a time, above 0; at most 1e15")
IN_MACHINE = Template("{where}: machine")
IN_LAYOUT = Template("{where}: layouts.{layout}")
IN_ROW = Template("{where}.rows[{row}]")
IN_MODEL = Template("{where}.models[{model}]")

# tuning_file
TUNING_FILE = Template("tuning file {path}")
TUNING_FILE_OF = Template("tuning file {path} ({variable})")
TUNING_OF_RANK_0 = Template("rank 0's tuning")
TUNING_UNREADABLE = Template("{file} cannot be read: {reason}")
TUNING_LEFT_OUT = Template("without tuning: {error}")
NO_LAYOUT = Template(
    "{file} has no layout {layout} ({ranks}), only {known}: add it with `ringtrain tune --tuning {path}`, started like "
    "this run"
)
OTHER_MACHINE = Template(
    "{file} is of another machine:\n{differences}\n`ringtrain tune` measures this one: --tuning names another file for "
    "it, --fresh replaces this one"
)
NO_TUNING_FILE = Template("there is no {file}: `mpirun -np N ringtrain tune` makes one; run it first")
TUNING_NOT_JSON = Template("{file} is not JSON ({error}): make one with `ringtrain tune`")

# wires
UNKNOWN_WIRE = Template("unknown wire {name!r}: {hint}")
