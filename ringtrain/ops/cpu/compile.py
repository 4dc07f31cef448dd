"""Compiles the kernels of ``sources`` into one library for each CPU family, when ringtrain is installed.

The compiler is ``$CXX``, the wheel ``ziglang``, ``g++`` or ``clang++``: the first that compiles any family.
setup.py runs this file, so it imports the standard library alone.

A library's file is named by its family and by a digest of the sources: one of other sources is not found, rather than
called with wrong arguments. A build that is interrupted leaves what was there.
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
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "sources"
LIBRARIES = Path(__file__).parent / "libraries"
BUILT = "built.json"  # beside the libraries: what compiled them, and which families it could not
ONCE = ("threads.cpp", "mapped.cpp", "streamed.cpp")  # the sources that have no Real
TYPES = ("float", "double")
GLIBC = "2.28"  # the oldest that a library compiled by zig runs with
# Best first. v4 has AVX-512, v3 AVX2 and fused multiply-adds, v2 SSE4.2.
FAMILIES = {"x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2"), "aarch64": ("aarch64",)}
FAMILY_FLAGS = {"x86-64-v4": ["-mprefer-vector-width=512"]}
# A compiler must neither fuse nor reorder what the sources write down: all families then give the same bits.
FLAGS = shlex.split("-std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -fPIC -g0 -Wall")
# The library calls its own functions and the C library of its process, nothing else.
LINK_FLAGS = ["-shared", "-Wl,-Bsymbolic", "-Wl,--as-needed"]
REMEDIES = """\
Either install on a machine for which the package ziglang has wheels, as Linux on x86-64 and AArch64 is, with CXX unset:
pip then fetches this compiler for the installation alone. Or set CXX to a compiler of C++17, such as g++ 11, clang++ 12
or newer, and install again: CXX=/usr/bin/g++ pip install ..."""


class CompileError(Exception):
    """No compiler, or none that compiles the kernels."""


@dataclass(frozen=True)
class Compiler:
    """name: for people; command: starts it; zig: whether it takes the flags of zig"""

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
        """Return the command that makes a library of objects."""
        if not self.zig:
            return [*self.command, *LINK_FLAGS]
        # Linked as C++, zig would compile a C++ library first.
        target = ["-target", f"{machine}-linux-gnu.{GLIBC}"]
        return [*self.command[:-1], "cc", *target, *LINK_FLAGS, "-nostdlib"]


def compilers() -> Iterator[Compiler | str]:
    """The compilers of this machine, best first, or why one is not here. $CXX is the user's choice."""
    command = tuple(shlex.split(os.environ.get("CXX", "")))
    if command:
        named = Compiler("CXX=" + shlex.join(command), command, zig=_is_zig(command))
        yield named if shutil.which(command[0]) else f"{named.name}: there is no such program"
    zig = (sys.executable, "-m", "ziglang")
    version = subprocess.run([*zig, "version"], capture_output=True, text=True)
    if version.returncode:
        yield "zig: " + ("left out, as CXX is set" if command else _brief(version.stderr))
    else:
        yield Compiler(f"zig {version.stdout.strip()}", (*zig, "c++"), zig=True)
    for name in ("g++", "clang++"):
        yield Compiler(name, (name,)) if shutil.which(name) else f"{name}: not on PATH"


def _is_zig(command: Sequence[str]) -> bool:
    """Whether it is ``zig c++`` or ``python -m ziglang c++``, and not ``ccache c++``."""
    *before, last = command
    return last == "c++" and bool(before) and ("ziglang" in before or Path(before[-1]).name.startswith("zig"))


@cache
def sources_digest() -> str:
    """Return the SHA-256 of the sources and of how they are compiled."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".hpp")):
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def file_name(family: str) -> str:
    """Return the name of the library of a family, compiled from these sources."""
    return f"kernels-{family}-{sources_digest()[:12]}.so"


def read_built(folder: Path = LIBRARIES) -> dict:
    """Return what compiled the libraries of a folder: compiler, CXX, families, failed; {} if it has none of these
    sources."""
    try:
        built = json.loads((folder / BUILT).read_text())
    except (OSError, ValueError):
        return {}
    is_current = built.get("digest") == sources_digest()
    return built if is_current and all((folder / file_name(f)).exists() for f in built["families"]) else {}


def up_to_date(folder: Path, machine: str) -> bool:
    """Whether the folder has the libraries of these sources for all families of the machine, or all that the compiler
    that the user names can make."""
    built, cxx = read_built(folder), os.environ.get("CXX", "")
    done = {*built.get("families", ()), *built.get("failed", ())} == set(FAMILIES.get(machine, ("none",)))
    return done and (built["CXX"] == cxx if cxx else not built["failed"])


def compile_all(folder: Path, machine: str) -> dict:
    """Write the libraries of a machine (``x86_64``, ``aarch64``) into the folder, of all families that the compiler can
    make. Returns what :func:`read_built` does.

    Raises: CompileError
    """
    if machine not in FAMILIES:
        raise CompileError(f"there are no kernels for {machine}, only for {' and '.join(FAMILIES)}")
    tried = []
    for compiler in compilers():
        if isinstance(compiler, str):
            tried.append(compiler)
            continue
        failed = _compile_families(compiler, machine, folder)
        families = [family for family in FAMILIES[machine] if family not in failed]
        if families:
            built: dict[str, Any] = {
                "digest": sources_digest(),
                "CXX": os.environ.get("CXX", ""),
                "compiler": compiler.name,
            }
            built |= {"families": families, "failed": failed}
            _put_in_place(folder / BUILT, (json.dumps(built, indent=1) + "\n").encode())
            _remove_others(folder, {BUILT, *map(file_name, families)})
            return built
        tried += [f"{compiler.name}: {why}" for why in dict.fromkeys(failed.values())]
    raise CompileError("\n".join(["the kernels of the CPU could not be compiled. Tried:", *tried, REMEDIES]))


def _compile_families(compiler: Compiler, machine: str, folder: Path) -> dict[str, str]:
    """Compile all families beside one another. Returns why, of those that fail."""

    def attempt(family: str) -> tuple[str, str]:
        try:
            compile_family(compiler, machine, family, folder / file_name(family), pool=pool)
        except CompileError as error:
            return family, _brief(str(error))
        return family, ""

    families = FAMILIES[machine]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, ThreadPoolExecutor(len(families)) as each:
        return {family: why for family, why in each.map(attempt, families) if why}


def compile_family(
    compiler: Compiler,
    machine: str,
    family: str,
    out: Path,
    more: Sequence[str] = (),
    types: Sequence[str] = TYPES,
    pool: ThreadPoolExecutor | None = None,
) -> None:
    """Compile one library. ``more``: further flags of every call; ``pool``: runs the calls.

    Raises: CompileError
    """
    flags = [*FLAGS, *compiler.flags(machine, family), *more]
    with tempfile.TemporaryDirectory(prefix="ringtrain-kernels-", ignore_cleanup_errors=True) as scratch:
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}

        def run(command: Sequence[str]) -> None:
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise CompileError(str(error)) from None
            if done.returncode:
                raise CompileError(done.stderr.strip() or f"{shlex.join(command)} ended with {done.returncode}")

        def compile_one(work: tuple[Path, str]) -> str:
            source, type = work
            object_file = str(Path(scratch) / f"{source.stem}-{type}.o")
            run([*compiler.command, *flags, f"-DReal={type}", "-c", "-o", object_file, str(source)])
            return object_file

        work = [(s, t) for s in sorted(SOURCES.glob("*.cpp")) for t in (types if s.name not in ONCE else TYPES[:1])]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
            objects = list((pool or workers).map(compile_one, work))
        linked = Path(scratch) / out.name
        strip = () if "-g" in more else ("-s",)
        run([*compiler.link(machine), *strip, *more, "-o", str(linked), *objects])
        _put_in_place(out, linked.read_bytes())


def _put_in_place(path: Path, content: bytes) -> None:
    """Write a file whole, or not at all: another installation, or a run, may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as aside:
        (Path(aside) / path.name).write_bytes(content)
        os.replace(Path(aside) / path.name, path)


def _remove_others(folder: Path, kept: set[str]) -> None:
    """Remove libraries of other sources and other machines."""
    for path in folder.glob("kernels-*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _brief(text: str) -> str:
    """The line of a compiler's words that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])
