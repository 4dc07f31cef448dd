"""Checks the compiled kernels in a wheel: wheel_check.py MACHINE WHEEL. They are of the machine, one library for each
family, compiled by zig, and call nothing but the C library.
"""

import json
import runpy
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
CALLED = {
    "abort",
    "aligned_alloc",
    "bcmp",
    "calloc",
    "clock_gettime",
    "free",
    "malloc",
    "memcpy",
    "memmove",
    "memset",
    "sched_yield",
    "syscall",
    "getpid",
    "sigfillset",
    "sigdelset",
}
FOLDER = "ringtrain/ops/cpu/libraries/"
DYNAMIC_SYMBOLS, DYNAMIC = 11, 6  # sh_type


def main(machine: str, wheel: str) -> None:
    compile = runpy.run_path(str(Path(__file__).parents[1] / "ringtrain/ops/cpu/compile.py"))
    with zipfile.ZipFile(wheel) as file:
        held = {name.removeprefix(FOLDER) for name in file.namelist() if name.startswith(FOLDER)}
        wanted = [compile["file_name"](family) for family in compile["FAMILIES"][machine]]
        ask(held == {*wanted, compile["BUILT"]}, f"wanted libraries {wanted}, got {sorted(held)}")
        built = json.loads(file.read(FOLDER + compile["BUILT"]))
        ask(built["compiler"].startswith("zig "), f"compiled by {built['compiler']}, not by zig")
        for name in wanted:
            check_library(name, file.read(FOLDER + name), MACHINES[machine])
    ask(f"-py3-none-manylinux_{compile['GLIBC'].replace('.', '_')}_{machine}.whl" in wheel, f"the tag of {wheel}")


def check_library(name: str, elf: bytes, machine: int) -> None:
    ask(elf[:5] == b"\x7fELF\x02", f"{name} is no 64-bit ELF")
    ask(struct.unpack_from("<H", elf, 18)[0] == machine, f"{name} is of another machine")
    called = {symbol for symbol, section in symbols(elf) if section == 0 and symbol}
    strange = {symbol for symbol in called - CALLED if not symbol.startswith("pthread_")}
    ask(not strange, f"{name} calls {sorted(strange)}")
    needed = sum(tag == 1 for at, size, _ in sections(elf, DYNAMIC) for tag, _ in struct.iter_unpack("<qQ", elf[at:at + size]))  # fmt: skip  # noqa: E501
    ask(not needed, f"{name} wants {needed} other libraries")
    print(f"{name}: {len(elf):,} bytes, calls {', '.join(sorted(called))}")


def sections(elf: bytes, wanted: int) -> Iterator[tuple[int, int, int]]:
    """(offset, size, linked section) of the sections of a type."""
    (table,), (size, count) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 58)
    for i in range(count):
        type, *_, at, length, link = struct.unpack_from("<IQQQQI", elf, table + i * size + 4)
        if type == wanted:
            yield at, length, link


def symbols(elf: bytes) -> Iterator[tuple[str, int]]:
    """(name, section, 0 if it is defined elsewhere) of the dynamic symbols."""
    (table,), (size, _) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 58)
    for at, length, link in sections(elf, DYNAMIC_SYMBOLS):
        (strings,) = struct.unpack_from("<Q", elf, table + link * size + 24)
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", elf[at : at + length]):
            start = strings + name
            yield elf[start : elf.index(b"\0", start)].decode(), section


def ask(truth: bool, otherwise: str) -> None:
    if not truth:
        sys.exit(f"wheels: {otherwise}")


if __name__ == "__main__":
    main(*sys.argv[1:])
