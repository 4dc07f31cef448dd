"""Compiles the kernels of ``sources`` into one library for each CPU family, when ringtrain is installed.

The compiler is that of the wheel ``ziglang``, or ``$CXX``, ``g++`` or ``clang++``. setup.py runs this file, so it
imports the standard library alone.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "sources"
LIBRARIES = Path(__file__).parent / "libraries"
BUILT = "built.json"  # beside the libraries: what they were compiled from, and by
ONCE = "threads.cpp"  # the source that has no Real
TYPES = ("float", "double")
GLIBC = "2.28"  # the oldest that a library compiled by zig runs with
# Best first. v4 has AVX-512, v3 AVX2 and fused multiply-adds, v2 SSE4.2.
FAMILIES = {"x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2"), "aarch64": ("aarch64",)}
FAMILY_FLAGS = {"x86-64-v4": ["-mprefer-vector-width=512"]}
# A compiler must neither fuse nor reorder what the sources write down: all families then give the same bits.
FLAGS = shlex.split("-std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -fPIC -g0 -Wall")


class CompileError(Exception):
    """No compiler, or none that compiles the kernels."""


@dataclass(frozen=True)
class Compiler:
    """name: for people; command: starts it; zig: whether it is the wheel's"""

    name: str
    command: tuple[str, ...]
    zig: bool = False

    def flags(self, machine: str, family: str) -> list[str]:
        """Return the flags of a CPU family."""
        if not self.zig:
            return ["-march=" + family.replace("aarch64", "armv8-a"), *FAMILY_FLAGS.get(family, [])]
        cpu = family.replace("-", "_").replace("aarch64", "generic")
        return ["-target", f"{machine}-linux-gnu.{GLIBC}", f"-mcpu={cpu}", *FAMILY_FLAGS.get(family, [])]

    def link(self, machine: str) -> list[str]:
        # The library calls the C library of its process alone. Linked as C++, zig would compile libc++ first.
        if not self.zig:
            return [*self.command, "-shared", "-s"]
        return [*self.command[:-1], "cc", "-target", f"{machine}-linux-gnu.{GLIBC}", "-shared", "-s", "-nostdlib"]


def compilers() -> Iterator[Compiler]:
    """The compilers of this machine, best first: $CXX is the user's choice."""
    if os.environ.get("CXX"):
        yield Compiler(os.environ["CXX"], tuple(shlex.split(os.environ["CXX"])))
    zig = (sys.executable, "-m", "ziglang", "c++")
    if subprocess.run([*zig[:3], "version"], capture_output=True).returncode == 0:
        yield Compiler("zig", zig, zig=True)
    for name in ("g++", "clang++"):
        if shutil.which(name):
            yield Compiler(name, (name,))


def sources_digest() -> str:
    """Return the SHA-256 of the sources and of the way they are compiled."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def up_to_date(folder: Path, machine: str) -> bool:
    """Whether the folder has the libraries of these sources for all families of the machine."""
    try:
        built = json.loads((folder / BUILT).read_text())
    except (OSError, ValueError):
        return False
    there = all((folder / file_name(family)).exists() for family in FAMILIES.get(machine, ()))
    return there and built.get("digest") == sources_digest()


def file_name(family: str) -> str:
    return f"kernels-{family}.so"


def compile_all(folder: Path, machine: str) -> None:
    """Write the libraries of all families of a machine (``x86_64``, ``aarch64``) into the folder.

    Raises: CompileError
    """
    if machine not in FAMILIES:
        raise CompileError(f"ringtrain has no kernels for {machine}: there are those for {', '.join(FAMILIES)}")
    failures = []
    for compiler in compilers():
        try:
            for family in FAMILIES[machine]:
                compile_family(compiler, machine, family, folder / file_name(family))
        except CompileError as error:
            failures.append(f"{compiler.name}: {error}")
            continue
        built = {"digest": sources_digest(), "compiler": compiler.name}
        (folder / BUILT).write_text(json.dumps(built) + "\n")
        return
    raise CompileError("\n".join(failures) or "there is no C++ compiler")


def compile_family(
    compiler: Compiler, machine: str, family: str, out: Path, more: Sequence[str] = (), types: Sequence[str] = TYPES
) -> None:
    """Compile one library. ``more``: further flags of every call.

    Raises: CompileError
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, *compiler.flags(machine, family), *more]
    with tempfile.TemporaryDirectory(prefix="ringtrain-kernels-") as scratch:
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}

        def run(command: Sequence[str]) -> None:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise CompileError(done.stderr.strip() or f"{shlex.join(command)} ended with {done.returncode}")

        def compile_one(source: Path, type: str) -> str:
            object_file = str(Path(scratch) / f"{source.stem}-{type}.o")
            run([*compiler.command, *flags, f"-DReal={type}", "-c", "-o", object_file, str(source)])
            return object_file

        work = [(s, t) for s in sorted(SOURCES.glob("*.cpp")) for t in (types if s.name != ONCE else TYPES[:1])]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = list(threads.map(lambda each: compile_one(*each), work))
        linked = Path(scratch) / out.name
        run([*compiler.link(machine), *more, "-o", str(linked), *objects])
        aside = out.with_suffix(".new")  # a library in use must not change
        shutil.copyfile(linked, aside)
        os.replace(aside, out)
