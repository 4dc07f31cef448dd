"""Errors and notes of this room that users see."""

from ringtrain.template import Template

# doctor

# doctor.doctor
LINE_OF = Template("{text} [{ranks} on {hosts}]")

# doctor.host
PYTHON = Template("ringtrain {ringtrain}, Python {python}, NumPy {numpy}")
PYTHON_LACKS = Template("{versions}; not installed: {names}")
PYTHON_INSTALL = Template("python -m pip install {names}")
MPI_VERSIONS = Template("{mpi}, mpi4py {mpi4py}")
MPI_INSTALL = Template("for several ranks: pip install 'ringtrain[mpi]', or load the site's MPI")
MPI_THREADS = Template("use an MPI with thread level multiple: without it the guard sees no rank of another node")
RANKS_HOSTS = Template("{ranks} on {nodes}: {hosts}")
SHARED_MEMORY = Template("the ranks of a node share it{room}")
SHARED_MEMORY_NONE = Template("none between ranks{room}")
SHARED_MEMORY_ROOM = Template(", {mib:,} MiB free in /dev/shm")
SHARED_MEMORY_USE = Template(
    "ranks of a node will send messages instead: use an MPI with shared windows, and give /dev/shm room"
)
SHARED_MEMORY_MORE = Template("gradients lie there: start the container with --shm-size=2g, or free space there")
CPU_KERNELS = Template("{family}, compiled by {compiler}")
COMPILER_UNKNOWN = "an unknown compiler"
CPU_KERNELS_CHOSEN = Template("{kernels}; {setting} asks for them, the CPU has {best}")
CPU_KERNELS_LACKING = Template("{kernels}; the CPU has {best}, which is not compiled: {why}")
CPU_KERNELS_AGAIN = Template(
    "training is slower than it could be: install ringtrain again with a newer CXX, or without"
)
KERNELS_KEPT = Template("are kept in {folder}")
KERNELS_LOST = Template("are not kept")
KERNELS_KEEP = Template("every run compiles them again: set {variable} to a writable folder")

# doctor.cores
CORES_SAME = Template("{cores}, the same of all ranks")
CORES_BY_RANK = Template("by rank {cores}")
CORES_CROWDED = Template("{cores}: {crowd}")
CORES_GIVE = Template("give each rank a core of its own: fewer ranks, or more slots; mpirun --bind-to core")
CORES_HALVES = Template("{cores}: {crowd}, of two threads each")
CORES_WHOLE = Template("two threads of a core halve it: mpirun --map-by core, --hint=nomultithread of Slurm")
QUOTA = Template("{share:g} of time on {host}, for {ranks}")
QUOTA_MORE = Template("the system stops ranks beyond it, and all wait: start as many ranks as cores; --cpus of docker")
THREADS = Template("{threads} a rank")
THREADS_CROWDED = Template("{threads} threads of {ranks} on {cores} of {host}")
THREADS_FEWER = Template("threads wait for one another ({setting}): OMP_NUM_THREADS=cores over ranks, or 1")
NUMA_ONE = Template("one node")
NUMA = Template("{count} nodes: {cores}")
NUMA_SEVERAL = Template("{nodes}; a rank's cores are on {own}")
NUMA_BIND = Template(
    "its memory may lie far from its cores: mpirun --map-by numa --bind-to numa, or --cpu-bind of srun"
)

# doctor.memory
MEMORY_UNKNOWN = Template("this system does not report free memory")
MEMORY = Template("{free:.1f} GiB free{where}, {share:.1f} a rank")
MEMORY_LEAST = Template(" on {host}, which has least")
MEMORY_MORE = Template("fewer ranks a node, or more memory: --mem of Slurm, -m of docker; a model needs more than this")
LIMITLESS = Template("without limit")
LOCKED = Template("at most {mib:,.0f} MiB")
LOCKED_LITTLE = Template("{limit}, and there is {adapters}")
LOCKED_MORE = Template(
    "the MPI may fall back to TCP, or fail: ulimit -l unlimited where ranks are started (limits.conf; the "
    "LimitMEMLOCK of slurmd; --ulimit memlock=-1 of docker)"
)
OPEN_FILES = Template("at most {limit:,}")
OPEN_FILES_FEW = Template("at most {limit:,}, and a rank connects to {ranks:,} ranks")
OPEN_FILES_MORE = Template("ulimit -n {limit} where ranks are started")

# doctor.ranks
ONE_SIDED = Template("windows of the MPI add up{setting}")
ONE_SIDED_WRONG = Template(
    "windows of the MPI do not add up: {ranks} each added 1, and found {added:g}; tickets are {tickets}"
)
ONE_SIDED_TRY = Template("--asynchronous needs them: try another OMPI_MCA_osc (ompi_info lists them), or another MPI")
ULFM_NOT_BUILT = Template("this MPI has no ULFM, so no --elastic; {checkpoint}")
ULFM_OFF = Template("ULFM is built in, and off; {checkpoint}")
ULFM_RESUME = Template("after a rank's death a run goes on from its checkpoint: --resume auto")
ULFM_START = Template("for --elastic: mpirun --with-ft ulfm")
ULFM_NOT_OB1 = Template("ULFM is on, but messages use pml {pml}, so no --elastic")
ULFM_OB1 = Template("ULFM needs ob1, not UCX: unset OMPI_MCA_pml, or start without --with-ft ulfm")
ULFM_ON = Template("ULFM is on: with --elastic survivors go on after a rank's death")
LINKS = Template("{latency}, {rate} ({pairs})")
LINKS_SICK = Template("{links}, but {sick}")
LINKS_LEAVE = Template("every step waits for the slowest: leave it out; ringtrain bench-allreduce --pairs maps all")

# doctor.disk
FOLDER = Template("{place}: {free:,.1f} GiB free")
FOLDER_REFUSED = Template("{place}: {why}")
FOLDER_UNMADE = Template("{place}: its file system makes no folders")
FOLDER_MOVE = Template("run where you may write, or name a place by --out")
FOLDER_MAKE_ROOM = Template("a checkpoint may not fit: make room, or name a place by --out")
FOLDER_UNSEEN = Template("is not seen from {hosts}")
FOLDER_SHARE = Template("a run that goes on elsewhere finds no checkpoint: name a place that all nodes share by --out")
DISK = Template("{written} written ({mib} MiB); a small file in {small}")
DISK_SLOW = Template(
    "ranks wait while rank 0 saves: save checkpoints less often (--checkpoint-every), or in a faster place (--out)"
)

# doctor.devices
CUPY_TWICE = Template("they overwrite one another: pip uninstall {names}, then install the one that fits")
NO_PACKAGES = Template("none")
DRIVER_UNKNOWN = Template("of unknown version")
DRIVER_NOT_LISTED = Template("none of NVIDIA's is listed under /proc")
DRIVER_RUN = Template("run where nvidia-smi shows a GPU; in a container, with --gpus all (docker) or --nv (apptainer)")
DRIVER_NONE = Template("none; training runs on the CPU")
GPUS_NOT_LISTED = Template("not listed by the driver")
GPUS_MASKED = Template("{gpus}; CUDA_VISIBLE_DEVICES={mask}")
MPI_CUDA_NO_MPI = Template("there is no MPI")
MPI_CUDA_NO_DEVICE = Template("no device to send from")
MPI_CUDA_NOT_ALL = Template("no device that can be used on every rank")
MPI_CUDA_STAGED = Template("an MPI that is built for CUDA may be faster: docs/gpu.md")
RUNG = Template("{answer}: {why}")
DEVICE_SHARED = Template("ranks {ranks} share one")
DEVICE_FEWER = Template("they share its time and its memory: start as many ranks as there are GPUs")
DEVICE = Template(
    "{number}: {name}, compute capability {capability}, {processors} processors, {free:.1f} of {total:.1f} GiB free, "
    "CUDA {cuda}, CuPy for {built}"
)
STAGING = Template("{rate:.0f} GB/s")
STAGING_SLOW = Template(
    "a PCIe link of few lanes, or a rank on the other socket: bind it to the GPU's (nvidia-smi topo -m)"
)

# doctor.timeout
TIMED_OUT = Template("the check of {name} has not ended after {seconds:g} s, in {place}")
HELD = Template("a call that keeps the interpreter")

# slurm.py
NO_KIND = Template("there is no script {kind!r}; {hint}")
NO_COMMAND = Template("run wants the command of each rank after --, as -- python -m ringtrain.torch train.py")
TIME_MALFORMED = Template("--time {time}: wanted minutes, hours:minutes:seconds or days-hours, as 90 or 4:00:00")
MEMORY_MALFORMED = Template("--mem {memory}: wanted a number and K, M, G or T, as 64G; 0 for all of a node's")
CONTAINER_AND_VENV = Template("--container and --venv both bring ringtrain: give one of them")
NAME_MALFORMED = Template("--{option} {value!r}: wanted a name without blanks and shell characters")
SBATCH_MALFORMED = Template("--sbatch {line!r}: wanted one option of sbatch, as --sbatch=--constraint=a100")

# job_end.py
END_MALFORMED = Template(
    "{variable} is {value!r}; wanted the second at which the job ends, counted from 1970: $(($(date +%s) + "
    "SECONDS)) at the top of the job's script"
)

# binding.py
OF_MASK = Template(" of {variable}={mask}")
ONLY_DEVICE = Template("the only visible one{of}")
BY_LOCAL_RANK = Template("local rank {local_rank} modulo the {visible} visible ones{of}")
MASK_NAMES_NONE = Template(
    "{variable} is {mask!r}, which names no device of this machine: unset it, or name devices that nvidia-smi -L lists"
)
TASK_HAS_NONE = Template("the job has some, but this task got none: srun --gpus-per-task=1, or --gpus-per-node")
ASK_SLURM = Template("ask Slurm for them: --gpus-per-task=1 or --gpus-per-node of srun, salloc or sbatch")
SEE_NVIDIA_SMI = Template("nvidia-smi -L lists those of this machine; a container needs --gpus all")
NO_GPU = Template("--device cuda: this process sees no GPU: {hint}; or use --device cpu")
BOUND = Template("rank {rank}: node {node}, local rank {local_rank}, device {index}, {name}, {uuid}")
SHARED_DEVICE = Template(
    "ranks {ranks} and {last} share one device, its time and its memory: start as many ranks as there are GPUs"
)

# scheduler.py
STARTED_BY = Template("none; {launcher} starts the ranks")
LEFT = Template(", {span} left")
JOB = Template("{by} job {number}{colon}{given}{left}")
NODES_UNUSED = Template("ranks are on {nodes} of them")
USE_ALL_NODES = Template("start ranks on all: mpirun without --host, or srun")
TASKS_UNUSED = Template("there {verb} {ranks}")
START_AS_MANY = Template("start as many by mpirun, srun")
CORES_UNUSED = Template("a task has {cores}, but a rank runs on {used}")
GIVE_CORES = Template("mpirun --map-by slot:PE={cores}, or srun --cpus-per-task={cores}")
ENDS_SOON = Template("it ends soon")
MORE_TIME = Template("ask for more time: --time of Slurm")

# python_script
NO_SECONDS = Template("{name} is {value!r}: wanted a number of seconds above 0")

# mpirun
UNDER_LAUNCHER = Template("ringtrain scale starts the ranks itself: run it without {launcher}")
NO_MPIRUN = Template("no mpirun is on PATH: pip install 'ringtrain[mpi]', load the site's MPI, or give --launcher")
LAUNCHER_MALFORMED = Template("--launcher {launcher!r} is no command ({error})")
LAUNCHER_WITHOUT_RANKS = Template("--launcher {launcher!r} has no {place}, the place of the number of ranks")
LAUNCHER_MISSING = Template("--launcher {launcher!r}: there is no program {program}")
