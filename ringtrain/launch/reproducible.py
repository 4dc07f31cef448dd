"""The environment in which PyTorch computes the same bits on any machine: its threads and instruction sets, which its
libraries read when they are loaded. Nothing here imports PyTorch.

Source: PyTorch's ATen (ATEN_CPU_CAPABILITY), oneMKL's conditional numerical reproducibility, oneDNN's CPU dispatcher
control, glibc's tunables; all by their pages of 2026.
"""

from collections.abc import Collection, Mapping

from ringtrain.errors import UsageError

AVX2, LOWEST = "avx2", "lowest"
ISAS = (AVX2, LOWEST)
THREADS = "OMP_NUM_THREADS"
NEEDED = ("avx2", "fma")
TUNABLES = "GLIBC_TUNABLES"
WITHOUT_FMA = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable,-FMA4_Usable"  # of exp() and its like
SETTINGS = {
    AVX2: {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    LOWEST: {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        TUNABLES: WITHOUT_FMA,
    },
}


def fixed_variables(isa: str, environ: Mapping[str, str], cpu_flags: Collection[str]) -> dict[str, str]:
    """Return the variables that fix threads and instruction set, as they must be before PyTorch is loaded.

    isa:       one of ISAS
    environ:   the number of threads in it is kept; without one it is 1, whatever the cores
    cpu_flags: of /proc/cpuinfo

    Raises: UsageError for a CPU without the instructions.
    """
    missing = [flag for flag in NEEDED if isa == AVX2 and flag not in cpu_flags]
    if missing:
        raise UsageError(
            f"--reproducible computes with AVX2 and FMA, and this CPU has no {' and no '.join(missing)}: give "
            f"--reproducible-isa {LOWEST}, on all ranks, which has the same bits on every CPU, and other ones than AVX2"
        )
    variables = {THREADS: "1", "OMP_DYNAMIC": "false", "MKL_DYNAMIC": "false", **SETTINGS[isa]}
    if THREADS in environ:
        variables[THREADS] = environ[THREADS]
    kept = [part for part in environ.get(TUNABLES, "").split(":") if part and not part.startswith("glibc.cpu.hwcaps")]
    if TUNABLES in variables:
        variables[TUNABLES] = ":".join([*kept, variables[TUNABLES]])
    return variables
