"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# buffers.py
MEAN_OF_INTEGERS = Template("integers have no mean: use sum")
TYPE_NOT_ON_DEVICE = Template("a device adds {known}, but this is {dtype}")
OPERATION_NOT_ON_DEVICE = Template("a device all-reduces sums, but this is {op}")

# checks.py
SELF_TEST_FAILED = Template(
    "the {kind} check of {trial}, {op} of {dtype}, found {found} wrong elements after one byte was flipped: "
    "its verdicts are worthless; please report this"
)

# choose.py
UNKNOWN_NAME = Template("unknown {what} {name!r}: {hint}, or all")

# files.py
UNREADABLE = Template("{path}: {reason}")
NO_JSON = Template("{path} is not JSON ({error}): give a file from bench-allreduce --json")
NO_ROWS = Template("{path} has no rows of bench-allreduce: give a file from its --json")
ROW_NAME = Template("{where}: {name} is {value!r}, wanted a name or a number")
ROW_WORD = Template("{where}: {name} is {value!r}, wanted a word")
ROW_TIMES = Template("{where}: samples_s is {value!r:.60}, wanted a list of seconds, each above 0")
NO_FOLDER = Template("{path} cannot be written: there is no folder {folder}")
READ_ONLY = Template("{path} cannot be written: {reason}")

# gates.py
NOTHING_TO_COMPARE = Template(
    "nothing to compare: no row of the earlier sweep ({old} rows) matches a row of this one ({new}). Compare "
    "sweeps with the same algorithms, sizes, types, wires, operations, placements, ranks and nodes"
)
OTHER_RULE = Template(
    "{path} was measured in another way. Before each of its iterations {then}; in this sweep {now}. Give the "
    "same --warm and --cold, or measure it again"
)
NO_LONGER_OK = Template("{row}: was ok, is {status}: {reason}")
SLOWER = Template("{row}: {ratio:.2f} times the earlier time [{low:.2f},{high:.2f}], allowed {most:.2f}")
TOO_SLOW = Template("{algorithm}: busbw of at most {busbw:.3g} GB/s, wanted {wanted:.3g}")

# header.py
ROWS_SAY = Template("rows say what carried each")
ONE_RANK = Template("there is one rank")
WRITES_BUFFER = Template("every rank writes its buffer")
KEEPS_BUFFER = Template("buffers keep the values of the last iteration")
EMPTIES_CACHES = Template("{written}, and caches are emptied")
BESIDE = Template("{treated}; beside {processes} on each node")

# launches.py
NOISY = Template("cv above {most:.0%} in {noisy} of {launches}")
MACHINE = Template("{ranks} on {nodes} ({hosts}); {cpu}; {library}; {at}, load {low:.1f} to {high:.1f}.")
LAUNCHES = Template("{launches} of {repeats} iterations; before each, {before}.")
FIGURES = Template(
    "Times as fast as `{native}`, whose own times are in µs: least, **median**, greatest of the launches."
)

# layer_rows.py
FULLY_CONNECTED = Template(
    "fully connected layers, {layers}: {parameters:.1%} of the parameters, {time:.1%} of the time of all layers"
)
ITERATION = Template("an iteration takes {iteration} ms without its exchange: {rate:.4g} images/s")
MEMORY = Template("memory of a rank: {held} of weights, gradients and optimizer, {peak} at most in all")
PEAKS = Template("peak of {ranks}: {flops} GFLOP/s in a large product, {copied} in a large copy")
EXCHANGE = Template("to exchange {nbytes} a rank sends at least {sent}: it takes as long as all else at {rate}")

# memory.py
HOST_FULL = Template(
    "buffers of {nbytes} on {ranks} need {wanted}, but host {host} has {free} of memory left: make -e smaller,"
    " or start fewer ranks on it"
)
DEVICE_FULL = Template(
    "buffers of {nbytes} on {ranks} need {wanted}, but their device has {free} of memory left: make -e "
    "smaller, or start fewer ranks on it"
)

# nccl.py
INSTALL_NCCL = Template("pip install nvidia-nccl-cu13, for a CuPy of CUDA 12 nvidia-nccl-cu12")
NO_NCCL = Template("NCCL is not available: {error}: " + INSTALL_NCCL)
SHARED_DEVICE = Template("NCCL needs a device for each rank, but {ranks} share one")
NO_LIBNCCL = Template("CuPy does not find libnccl")

# pairs.py
SLOW_LINKS = Template("{name} has slow links: {times:.1f} times slower than those of the others")
LATE_MESSAGES = Template("{name} has late messages: {times:.1f} times the latency of the others")

# rows.py
WRONG_ELEMENTS = Template("{wrong:,} wrong elements")
BEATEN = Template("{times:.2f} times as fast as in {memory} memory")

# sizes.py
NO_SIZE = Template("{size!r} is not a size in bytes: write it as 4096, 64K, 1.5M or 2G (of 1024)")
TOO_LARGE = Template("a buffer of {size} is too large: at most {most}G")
BEGINS_AFTER_END = Template("the sweep begins at {first:,} bytes and ends at {last:,}: -b must not exceed -e")
FACTOR_TOO_SMALL = Template("-f {factor:g}: each size is the one before times this factor, so it must be above 1")
BEGINS_AT_ZERO = Template("the sweep begins at 0 bytes, so no factor makes it larger: -b must be at least 1")
TOO_MANY_SIZES = Template("-f {factor:.12g} makes {count:,.0f} sizes, but at most {most:,} are allowed: make it larger")

# sweep.py
MEASURING = Template("{nbytes:,} bytes of {dtype}")
CHECKING = Template("checking {trial} on {nbytes:,} bytes of {dtype}")

# tables.py
HEADER = Template("ringtrain {version} bench-allreduce {at}, load {load:.1f}")
TRANSPORT = Template("{library}; transport {transport} ({why})")
RANKS = Template("{ranks} on {nodes}: {hosts}; {cpu}; {machine}")
CORES = Template("cores by rank: {cores}{crowded}")
PROTOCOL = Template(
    "{repeats} iterations after {warm_up}, algorithms interleaved (seed {seed}), ranks started by a {start}; "
    "time: median of the slowest rank's"
)
BEFORE = Template("before an iteration, {before}")
LATE = Template("late: rank {rank} also comes {time} late")
CROWDED = Template("; {crowded}: times include the scheduler's")
NOT_MAPPED = Template("; not mapped within a node: {why}")
DEVICES = Template("buffers on {devices}, {name}; messages {ways}{not_mapped}")
PEER_COPIES = Template(", from a neighbour's {rate}")
COPIES = Template("copies on the device, all ranks at once: {rate}{peer}")
LINKS = Template("links {kind}: alpha {alpha}, one pair {pair}, both directions {both}, all busy {busy} a rank")
ADDING = Template("adding, all ranks at once: {rate}")
WORST_PAIRS = Template("worst pairs: latency {first} and {second}, bandwidth {third} and {fourth}")
NONE_STANDS_OUT = Template("no rank or host stands out")
OVER_WIRE = Template(" over a wire of {wire}")
FIT = Template("# fit of {what}:")
NOT_JUDGED = Template("{text}; not judged: fewer than four sizes")
JUDGED = Template("{text}; on {sizes} held out off by {median} (median), {worst} (worst)")
FROM_SIZE = Template("from {size} on ")
CROSSOVER = Template("{first} and {second} cross: predicted {predicted}, measured {measured}")
CHECKED = Template("# checked {rows} rows, every element twice: {wrong} wrong, {refused} refused")
SELF_TESTED = Template("{text}; a flipped byte was noticed in each of {tests} self-tests")

# trials.py
WIRE_UNUSED = Template("{algorithm} sends no messages on one node: a wire of {wire} would round nothing")
WIRE_TYPE = Template("a wire of {wire} carries float32, but this is {dtype}")
WIRE_NOT_HERE = Template("{algorithm} sends a buffer as it is: a wire of {wire} is for schedules")

# tune.py
BARRED = Template(
    "{algorithm} was wrong, or differed between ranks, at {size} of {dtype} {op}: auto takes it at no size"
)
SCHEDULER_MEASURED = Template("{crowded}: times include the scheduler's")
NOISY_ROWS = Template("{noisy} of {rows} rows vary by more than {most:.0%}, even in their quietest pass")
TUNE_AGAIN = Template("{doubt}: tune again when the machine is idle")
GIVES_WAY = Template("{before} gives way to {after} at {size}")
