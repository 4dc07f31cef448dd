"""Errors of the Python interface."""

from ringtrain.template import Template

# communicator
ALL_REDUCE = Template("allreduce, {request}")
PREPARE = Template("prepare, {request}")
EMPTY = Template("empty, {dtype} {shape}")
BENCH = Template("bench, {op} of {dtype} {shape} by {algorithms}")
REGISTER = Template("register")
UNREGISTER = Template("unregister, block {number}")
NOT_REGISTERED = Template("this array of {nbytes} bytes is not registered: give the one that register() was given")
NO_SHAPE = Template("an array cannot have the shape {shape}: lengths begin at 0")
NO_REPEATS = Template("repeats={repeats} measures nothing: give 1 or more")
UNDER_WAY = Template("{call}() while a prepared reduction is under way: wait() for it first")
CLOSED = Template("this communicator is closed: make another")
THE_ARRAY = Template("the array")
OUT = Template("out")

# arrays
NOT_AN_ARRAY = Template(
    "{thing} is not an array: pass one of NumPy, PyTorch, JAX or CuPy, or any that has __dlpack__; a number as "
    "np.float64(x)"
)
UNREADABLE = Template("the elements of {thing} cannot be read ({reason}): {advice}")
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
READ_ONLY = Template("{name} cannot be written to: use the result of allreduce(array), which is a new array")
CALLS_DIFFER = Template("ranks make different calls: all must make the same. {calls}")
CALL_OF = Template("{ranks}: {call}")
