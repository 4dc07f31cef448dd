"""Errors and notes of operations and devices that a user sees."""

from ringtrain.template import Template

# catalogue
UNKNOWN_OPS = Template("unknown operations {name!r}; {hint}")
UNKNOWN_DTYPE = Template("operations {name!r} got dtype {dtype!r}; use float32 or float64")

# precision
UNKNOWN_PRECISION = Template("unknown precision {precision!r}; {hint}")
PRECISION_OF_CHECKS = Template(
    "--precision {precision} with --dtype {dtype}: --precision is for float32 weights, and {dtype} is for checks; "
    "leave one of them out"
)
NO_ML_DTYPES = Template("--precision bfloat16 wants the package ml_dtypes: pip install ml_dtypes")

# cpu/library
NO_LIBRARIES = Template(
    "{folder} has no kernels for this CPU that were compiled from the present sources; install ringtrain again: "
    "scripts/quickstart, or pip install as you did"
)
HIDES_INSTALLED = Template(
    "{folder} has no kernels for this CPU, and hides the ringtrain that is installed in {installed}: start in another "
    "folder, or install this one by `pip install -e {checkout}`"
)
NOT_LOADED = Template("the kernels of the CPU cannot be loaded: {path}: {error}; install ringtrain again")
OTHER_ACTIVATIONS = Template(
    "the kernels of the CPU have other activations than ringtrain.ops.base.ACTIVATIONS: {path} has {kinds}; wanted "
    "{wanted}; complete ops/cpu/sources/activations.cpp, in this order, and install ringtrain again"
)
NO_FAMILY = Template("{setting}={wanted}: this machine can run {usable}; unset it, or name one of these")
NO_KERNELS = Template("ringtrain has no kernels for this CPU ({machine}); use --ops reference")
NOT_THE_ARRAY = Template("wanted an array of {wanted} without gaps, got {got} with strides {strides}")

READ_ONLY = Template("wanted an array of {wanted} to write into, got one that is read-only")

THREADS = Template("--threads {count}: a rank has 1 to {most}")

# cuda/checks
INSTALL = Template("pip install 'ringtrain[cuda{major}]'")
CUPY_BROKEN = Template("--device cuda: CuPy cannot be imported: {error}")
NO_CUPY = Template(
    "--device cuda wants CuPy, which is not installed: {newer} for a driver of CUDA 13, {older} for an older one "
    "(nvidia-smi shows the driver's CUDA version)"
)
NO_DRIVER = Template(
    "--device cuda: no NVIDIA driver was found (there is no libcuda.so.1): run where `nvidia-smi` shows a GPU, give a "
    "container `--gpus all`, or use --device cpu"
)
OLD_DRIVER = Template(
    "--device cuda: the installed CuPy is built for CUDA {built}, but the driver runs up to CUDA {driver}: {what_to_do}"
)
NEWER_DRIVER = Template("install a newer driver")
OLDER_CUPY = Template("pip uninstall cupy-cuda{built}x, then {install}; or install a newer driver")
DRIVER_FAILS = Template("--device cuda: the driver does not work: {error}")
NO_GPU = Template("--device cuda: no GPU is visible{visible}; nvidia-smi -L lists the GPUs of this machine")
VISIBLE = Template(" (CUDA_VISIBLE_DEVICES={devices})")
NOT_VISIBLE = Template("device {index} is not visible: {seen}{visible}")
ONE_IS = Template("device 0 is")
SEVERAL_ARE = Template("devices 0 to {last} are")
UNUSABLE = Template("device {index} cannot be used: {error}")
OLD_DEVICE = Template(
    "device {index}, {name}, has compute capability {capability}; ringtrain's kernels want {oldest} (A100, RTX 30) or "
    "newer"
)

# cuda/faults
OUT_OF_MEMORY = Template("device {index} is out of memory: {doing}: {error}")
BUSY = Template(
    "device {index} is in use by another process and accepts no second one (nvidia-smi -q -d COMPUTE shows its mode; "
    "nvidia-smi -c DEFAULT lets processes share it): {error}"
)
NOT_COMPILED = Template("{doing} failed; the compiler says:\n{error}")
FAILED = Template("{doing} failed on device {index}: {error}")
NO_LIBRARY = Template(
    "{doing} wants a CUDA library that cannot be loaded; pip install 'ringtrain[cuda13]' (or cuda12) installs it: "
    "{error}"
)
ARRAY_TOO_LARGE = Template(
    "device {index} is out of memory: an array wants {asked} ({nbytes:,} bytes), {left} of {whole} are free; use a "
    "smaller batch, or --precision bfloat16"
)

# cuda/choice, cuda/trials, cuda/gemm, cuda/convolution: why an implementation is not used
LEFT_OUT = Template("{name} is left out {times}×: {why}")
NOT_OFFERED = Template("{kind} is left out: {why}")
UNKNOWN_KIND = Template("{setting}={value}: no way is called {name!r}; name some of {known}, with commas between them")
OTHER_RESULT = Template("its result differs from that of {name} by more than {most:g} of the norm")
NOT_RECORDABLE = Template("it cannot be recorded: {error}")
CUBLAS = Template("cuBLAS: {error}")
CUDNN = Template("cuDNN: {error}")
CUDNN_RAISED = Template("cuDNN: {kind}: {error}")

# cuda/wgmma_trial
WGMMA_UNTRIED = Template("a child process could not try it on this GPU ({why})")
WGMMA_LATE = Template("it was not done after {seconds:g} s")
WGMMA_NEIGHBOUR = "another process tried, and has no verdict"
WGMMA_FAILED = Template("a child process tried it on this GPU, and failed: {why}; to try again, remove {path}")
WGMMA_DIFFERS = Template("{work} by {name} differs from {first} by more than {most:g} of the norm")
BY_SIGNAL = Template("ended by signal {signal}")

# cuda/segments: how segments run
RECORDED = Template("{count} segments recorded")
RUN_EACH_TIME = Template("{count} run anew each time ({why})")

# cuda: the device
DEVICE = Template("{name}, {precision}, CUDA {cuda} (driver {driver})")
DEVICE_AND_SEGMENTS = Template("{device}; {segments}")

# cuda/cupy_*: wrong calls
WHILE_RECORDING = Template("{action} while work is recorded; it cannot be part of a graph")
HOST_ARRAY = Template("a copy takes a C-contiguous NumPy array, not {kind}")
COPY_SIZES = Template("a copy of {given} bytes to {nbytes}")
NOT_WHOLE = Template("only a whole array, of Runtime.whole, can be shared")
OPEN_ALREADY = Template("this memory of another process is open already")
NOT_OPEN = Template("cannot close an array that is not open")

# cuda/cublas
PRODUCT = Template("a product of {a} and {b} to {c}")
CUBLAS_STATUS = Template("{call} returns {status}: {words}")

# cuda/cupy_maps
NO_MAP = Template("the driver refuses to encode {boxes}: CUDA error {error}")
