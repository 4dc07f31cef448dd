"""Errors and notes of PyTorch's process groups over ringtrain."""

from ringtrain.template import Template

# world
OTHER_PROCESS = Template(
    "this process was forked from rank {rank} of the MPI, and is no rank itself: start ranks by mpirun or srun, not by "
    "torch.multiprocessing"
)
OTHER_SIZE = Template(
    "init_process_group got rank {rank} of {size}, and the MPI says rank {own} of {ranks}: leave rank and world_size "
    "out, or start the script by mpirun or srun alone"
)

# work
TIMED_OUT = Template("the timeout is over: {error}")

# monitored_barrier: PyTorch's words for its own
NOT_PASSED = Template(
    "{ranks} failed to pass monitoredBarrier in {seconds:g} s: Rank 0 timed out in monitoredBarrier. See where they are"
)
NOT_RELEASED = Template(
    "Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
    "Please check rank 0 logs for faulty rank"
)

# mixed
NOT_MIXED = Template(
    "the group of {backends} cannot be made with torch {version}: make one group for the CPU's tensors and another one "
    "for the other devices'"
)

# tensors
SPARSE = Template("a {layout} tensor cannot be sent: pass tensor.to_dense()")
SPARSE_OP = Template("{op} of sparse tensors is not reduced: SUM and AVG are; pass tensor.to_dense()")
NOT_REDUCED = Template("{op} of {dtype} is not reduced: convert the tensor to one of {known}")
NO_PREMUL = Template(
    "PREMUL_SUM is NCCL's: multiply the tensor by the factor and use ReduceOp.SUM; in FSDP leave "
    "set_gradient_divide_factor out"
)
NO_BITS = Template("{op} combines the bits of integers, and this tensor is {dtype}")
UNEQUAL_PARTS = Template("{name} has {got} parts, and the group has {size} ranks: give one part for each")
UNEQUAL_SIZES = Template("{name}: {got:,} bytes, and {wanted:,} are wanted: {rule}")
RULE_GATHER = "the output has one input for each rank"
RULE_SCATTER = "the input has one output for each rank"
RULE_SPLITS = "splits add up to the first dimension"
ON_DEVICE = Template(
    "note: collectives of {device} tensors by ringtrain go through host memory; init_process_group('nccl') keeps them "
    "on the GPUs"
)

# buckets
NOT_SHARED = Template(
    "note: DDP's bucket of {mib:.3g} MiB stays in this process's own memory, and is copied at each all-reduce: {why}"
)
NO_ROOM = Template("{folder} has no {wanted:,} MiB free on every node")
NOT_MAPPED = "ranks of a node cannot map it"

# __main__
SCRIPT_FAILED = Template("ringtrain: rank {rank} ({host}) failed:\n{traceback}")
SCRIPT_EXITED = Template("ringtrain: rank {rank} ({host}) ended by sys.exit({code}); all ranks end")
NO_MODULE = Template("there is no module {name}, in {folder} or among the installed ones: give -m and its name")
NO_FILE = Template("{path} is no file: give the script's path, or -m and a module's name")
