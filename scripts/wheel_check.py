"""Checks the compiled kernels in a wheel: wheel_check.py MACHINE WHEEL. They are of the machine, one library for each
family, compiled by zig, and call nothing but the C library. Needs pyelftools.
"""

import io
import json
import runpy
import sys
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
CALLED = {
    "abort", "aligned_alloc", "bcmp", "calloc", "clock_gettime", "free", "malloc", "memcpy", "memmove", "memset",
    "sched_yield", "syscall", "getpid", "sigfillset", "sigdelset", "process_vm_readv", "__errno_location",
}  # fmt: skip
FOLDER = "ringtrain/ops/cpu/libraries/"


def main(machine: str, wheel: str) -> None:
    compile = runpy.run_path(str(Path(__file__).parents[1] / "ringtrain/ops/cpu/compile.py"))
    with zipfile.ZipFile(wheel) as file:
        names = {name.removeprefix(FOLDER) for name in file.namelist() if name.startswith(FOLDER)}
        wanted = [compile["file_name"](family) for family in compile["FAMILIES"][machine]]
        ask(names == {*wanted, compile["BUILT"]}, f"wanted libraries {wanted}, got {sorted(names)}")
        built = json.loads(file.read(FOLDER + compile["BUILT"]))
        makers = built["families"].values()
        ask(all(name.startswith("zig ") for name in makers), f"compiled by {', '.join(makers)}, not by zig")
        for name in wanted:
            check_library(name, file.read(FOLDER + name), MACHINES[machine])
    ask(f"-py3-none-manylinux_{compile['GLIBC'].replace('.', '_')}_{machine}.whl" in wheel, f"the tag of {wheel}")


def check_library(name: str, content: bytes, machine: str) -> None:
    elf = ELFFile(io.BytesIO(content))
    ask(elf.elfclass == 64 and elf["e_machine"] == machine, f"{name} is of another machine")
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    called = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}
    strange = {symbol for symbol in called - CALLED if not symbol.startswith("pthread_")}
    ask(not strange, f"{name} calls {sorted(strange)}")
    needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    ask(not needed, f"{name} wants {needed}")
    print(f"{name}: {len(content):,} bytes, calls {', '.join(sorted(called))}")


def ask(truth: bool, otherwise: str) -> None:
    if not truth:
        sys.exit(f"wheels: {otherwise}")


if __name__ == "__main__":
    main(*sys.argv[1:])
