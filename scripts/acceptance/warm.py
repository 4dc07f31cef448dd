"""Compile the kernels that the acceptance needs into CuPy's folder of compiled sources; no device is needed.

    warm.py FOLDER [--architecture sm_90] [--only SOURCE] [--manifest]

Kernels that are there already are not compiled. FOLDER gets rows.json: how many kernels there are to be, and how many
were missing. --manifest writes kernels.json beside the kernels, for scripts/gpu-acceptance.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from files import run_program, write_rows
from preflight import MANIFEST, version_of

from ringtrain.ops.cuda.checks import import_cupy
from ringtrain.ops.cuda.cupy_compiler import cache_folder, compiled_file
from ringtrain.ops.cuda.kernels import ARCHITECTURES, whole_source
from tests.ops.cuda_modules import NAMES, definitions

PACKAGES = "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"


def jobs(architecture: str, only: str | None) -> Iterator[tuple]:
    """Yield (source, its definitions, the architecture that it is compiled for), large ones first: of float32 without
    tensor cores, and of bfloat16: all of training. Tests of the device want others, too."""
    for source in sorted(NAMES, key=lambda name: -len(whole_source(name))):
        for act, cores in (("float", 0), ("__nv_bfloat16", 1)) if only in (None, source) else ():
            for defines in definitions(source, "float", act):
                if defines.get("CORES", cores) == cores:
                    options = tuple(f"-D{name}={value}" for name, value in defines.items())
                    yield source, options, ARCHITECTURES.get(source, architecture)


def compile_one(job: tuple) -> tuple[str, bool]:
    """Return (the name of the file, whether it was missing)."""
    source, options, architecture = job
    path, is_new = compiled_file(import_cupy(), whole_source(source), f"{source}.cu", options, architecture)
    return path.name, is_new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--only", metavar="SOURCE")
    parser.add_argument("--manifest", action="store_true")
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        compiled = list(pool.map(compile_one, jobs(options.architecture, options.only)))
    counts = {"kernels": len(compiled), "missing": sum(is_new for _, is_new in compiled)}
    print(f"{counts['missing']} of {counts['kernels']} sources were compiled, the others were there")
    write_rows(options.folder, counts)
    if options.manifest:
        packages = {name: version for name in PACKAGES if (version := version_of(name))}
        files = [name for name, _ in compiled]
        write_rows(cache_folder(), {"packages": packages, "files": files}, MANIFEST)
        for path in cache_folder().glob("*.cubin"):  # of former sources
            if path.name not in files:
                path.unlink()


if __name__ == "__main__":
    run_program(main)
