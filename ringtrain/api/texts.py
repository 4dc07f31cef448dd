"""Errors of the Python interface."""

from ringtrain.template import Template

# communicator
ALL_REDUCE = Template("allreduce, {request}")
PREPARE = Template("prepare, {request}")
PREPARED = Template("{request}, tag {tag}")
EMPTY = Template("empty, {dtype} {shape}")
BENCH = Template("bench, {op} of {dtype} {shape} by {algorithms}")
REGISTER = Template("register")
UNREGISTER = Template("unregister, block {number}")
NOT_REGISTERED = Template("this array of {nbytes} bytes is not registered: give the one that register() was given")
COLLECTIVE = Template("{kind} of {op}{dtype} {shape}{root} by {algorithm}")
OF_OP = Template("the {op} of ")
OF_ROOT = Template(", root {root}")
UNKNOWN_HALF = Template("unknown algorithm {name!r}: {hint}")
NO_SHAPE = Template("an array cannot have the shape {shape}: lengths begin at 0")
NO_REPEATS = Template("repeats={repeats} measures nothing: give 1 or more")
UNDER_WAY = Template("{call}() while a prepared reduction is under way: wait() for it first")
CLOSED = Template("this communicator is closed: make another")
NOT_CLOSED = Template(
    "the communicator of rank {rank} of {size} is dropped and not closed, and its thread and memory stay: close() it "
    "on all ranks, or use it in a with statement"
)
UNUSABLE = Template(
    "a call of this communicator was ended by {error}, and the other ranks may be in another one: close() it on all "
    "ranks and make another"
)
FORKED = Template(
    "the communicator is of the process that this one was forked from, and is used there alone: hand the arrays to "
    "it, or start more ranks with mpirun"
)
THE_ARRAY = Template("the array")
OUT = Template("out")

# collectives
ROWS_FOR_RANKS = Template("the first axis of the array must have one row for each of {size} ranks: {call} got {shape}")
NO_ROOT = Template("root={root}: ranks are 0 to {last}")
NOT_SCATTERED = Template("scatter gets its array on rank {root}: the others give out=, which tells the shape and type")
OBJECTS = Template("elements of type {dtype} are references to objects, whose bytes mean nothing on another rank")
UNLIKE_SHAPE = Template("out is {out_dtype} {out_shape}, and must be {dtype} {shape}")
NOT_EQUAL_PARTS = Template(
    "{rows} rows are not equal parts for {size} ranks: give send_counts and recv_counts, or a multiple of {size}"
)
BOTH_COUNTS = Template("give send_counts and recv_counts, both or neither: a rank must be told what it gets")
COUNTS_DO_NOT_FIT = Template(
    "{name}={counts} do not fit: wanted {size} numbers from 0, one for each rank, of {rows} rows together"
)
COUNTS_DIFFER = Template(
    "rank {source} sends {sent} bytes to rank {target}, which wants {expected}: send_counts of the one must be "
    "recv_counts of the other"
)
NO_AXIS = Template("{call} needs an array with rows, and this one has the shape []")

NO_SHARDS = Template(
    "reproducible=True adds this rank's shards, the rows of the first axis, and the shape is {shape}: give one or more"
)
NOT_REPRODUCIBLE = Template(
    "reproducible=True adds in one tree, and algorithm={algorithm!r} over wire={wire!r} does not: leave algorithm out, "
    "and give wire='none'"
)

# messages
NO_PEER = Template("peer={peer}: the other ranks are 0 to {last}, without this rank, {rank}")
NO_TAG = Template("tag={tag}: a tag is 0 to {last}, since every MPI has these")
SEND = Template("send to rank {peer} (tag {tag})")
RECEIVE = Template("recv (tag {tag})")

# group
NO_RANKS = Template("a group needs ranks of this communicator, 0 to {last}, each once: got {ranks}")

# work
NOT_DONE = Template("{call} is not done after {seconds:g} s")
NO_ASYNC = Template("async_op needs a thread that calls the MPI: {why}. Leave async_op out")
FROM_CALLBACK = Template("a function of add_done_callback calls a communicator: call it outside")
THREAD_ENDS = Template("the program ends while operations are in flight: wait() for them first")

# arrays
NOT_AN_ARRAY = Template(
    "{thing} is not an array: pass one of NumPy, PyTorch, JAX or CuPy, or any that has __dlpack__; a number as "
    "np.float64(x)"
)
UNREADABLE = Template("the elements of {thing} cannot be read ({reason}): {advice}")
MASKED = Template("{thing} has a mask, which a collective does not see: pass x.filled(…), or x.data for all elements")
SUBCLASS = Template(
    "{thing} may mean more than its memory, as a unit: pass np.asarray(x), which is the same memory without that"
)
ON_DEVICE = Template(
    "{thing} lies on device {kind}:{index} (DLPack's numbers), and only arrays of PyTorch, CuPy and JAX can be copied "
    "to the host from there: copy it to the host first"
)
AS_NUMPY = Template("pass a NumPy array of it")
REQUIRES_GRAD = Template(
    "the tensor requires grad, and autograd cannot record an all-reduce: pass x.detach(), which is the same memory, or "
    "the gradient x.grad"
)
AS_DENSE = Template("pass a dense tensor of numbers, on the CPU or a GPU")
TRACED = Template("inside jit, grad or vmap an array has no elements yet: call outside, or through jax.pure_callback")

# repeated
STARTED_AGAIN = Template("the reduction was started again before it finished: wait() first")

# request
REQUEST = Template("{op} of {dtype} {shape} by {algorithm}{wire}{place}")
OVER_WIRE = Template(" over {wire}")
IN_BLOCK = Template(" in block {block} at byte {offset}")
UNKNOWN_OPERATION = Template("unknown operation {op!r}: {hint}")
UNKNOWN_TYPE = Template("unknown type {dtype!r}: {hint}")
MEAN_NOT_WHOLE = Template("the mean of {dtype} is not an integer: use op='sum', or convert the array to float64")
WIRE_CARRIES = Template(
    "a wire of {wire} carries sums and means of float32, and this is {op} of {dtype}: use wire='none'"
)
NOT_REDUCED = Template("{dtype} elements are not reduced: convert the array to one of {known}")
UNLIKE = Template("out is {out_dtype} {out_shape}, and the array {dtype} {shape}: they must be alike")
READ_ONLY = Template("{name} cannot be written to: give an array that can, or leave out= out for a new one")
AGREEMENT = Template("agreement on a new call, {call}")
OF_SHAPE = Template("of shape {shape}")
NEW_CALL = "a call of a new kind"
CALLS_DIFFER = Template("ranks make different calls: all must make the same. {calls}")
CALL_OF = Template("{ranks}: {call}")
