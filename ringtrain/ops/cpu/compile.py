"""Compiles the kernels of ``sources`` into one library for each CPU family, when ringtrain is installed.

The compiler is ``$CXX``, the wheel ``ziglang``, ``g++`` or ``clang++``: the first that compiles any family.
setup.py runs this file, so it imports the standard library alone.

A library's file is named by its family and by a digest of the sources: one of other sources is not found, rather than
called with wrong arguments. A build that is interrupted leaves what was there.

The scripts of a checkout install this machine's family alone, by g++ where it gives the bits of zig, in a fifth of the
time. zig's library is faster: it takes its place when one of these calls has compiled all families::

    python compile.py beside   # in a process that goes on; one line says so
    python compile.py all      # now
"""

import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "sources"
LIBRARIES = Path(__file__).parent / "libraries"
BUILT = "built.json"  # beside the libraries: what compiled them, and which families it could not
LOG = "beside.log"  # of families that are compiled beside
ONCE = ("threads.cpp", "mapped.cpp", "streamed.cpp")  # the sources that have no Real
TYPES = ("float", "double")
GLIBC = "2.28"  # the oldest that a library compiled by zig runs with
ZIG = "ziglang>=0.13,<0.18"
# Versions of g++ whose libraries give the bits of zig's, by machine, as `scripts/check-kernels compilers` compares.
SAME_BITS = {"x86_64": ("12.2.0",)}
# Best first. v4 has AVX-512, v3 AVX2 and fused multiply-adds, v2 SSE4.2.
FAMILIES = {"x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2"), "aarch64": ("aarch64",)}
# The flags of /proc/cpuinfo that a family needs. Source: the x86-64 psABI, section 3.1.1.
V2 = {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
NEEDS = {"x86-64-v2": V2, "x86-64-v3": V3, "x86-64-v4": V4, "aarch64": set()}
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


def system_compiler() -> Compiler | None:
    """Return g++ where its libraries have the bits of zig's, and the user names no compiler."""
    if os.environ.get("CXX") or not shutil.which("g++"):
        return None
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    return Compiler(f"g++ {version}", ("g++",)) if version in SAME_BITS.get(platform.machine(), ()) else None


def checkout_compilers() -> Iterator[Compiler | str]:
    """The compilers of this machine for a checkout, which stays on it: the system's comes before zig."""
    system = system_compiler()
    if system is not None:
        yield system
    yield from compilers()


def _is_zig(command: Sequence[str]) -> bool:
    """Whether it is ``zig c++`` or ``python -m ziglang c++``, and not ``ccache c++``."""
    *before, last = command
    return last == "c++" and bool(before) and ("ziglang" in before or Path(before[-1]).name.startswith("zig"))


@cache
def sources_digest() -> str:
    """Return the SHA-256 of the sources and of how they are compiled."""
    how = (ONCE, TYPES, GLIBC, FAMILIES, FAMILY_FLAGS, FLAGS, LINK_FLAGS)
    digest = hashlib.sha256(repr(how).encode())
    for path in sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".hpp")):
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def file_name(family: str) -> str:
    """Return the name of the library of a family, compiled from these sources."""
    return f"kernels-{family}-{sources_digest()[:12]}.so"


def cpu_families() -> list[str]:
    """Return the families that this CPU has, best first."""
    flags = cpu_flags()
    return [family for family in FAMILIES.get(platform.machine(), ()) if NEEDS[family] <= flags]


def cpu_flags() -> set[str]:
    """Return the flags of the first CPU in /proc/cpuinfo; none if it cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def read_built(folder: Path = LIBRARIES) -> dict[str, Any]:
    """Return what compiled the libraries of a folder: families (the compiler of each), failed (why), CXX; {} if it has
    none of these sources."""
    try:
        built = json.loads((folder / BUILT).read_text())
    except (OSError, ValueError):
        return {}
    is_current = built.get("digest") == sources_digest()
    return built if is_current and all((folder / file_name(f)).exists() for f in built["families"]) else {}


def lacking(folder: Path, machine: str, families: Sequence[str] = ()) -> list[str]:
    """Return the families without a library of these sources; not those that the compiler cannot make that the user
    names. Of all that a machine has, those of :func:`system_compiler` are none: they are there for the time being.
    """
    built, cxx = read_built(folder), os.environ.get("CXX", "")
    kept = _kept(built, cxx, lasting=not families) | (built["failed"] if cxx and built.get("CXX") == cxx else {})
    return [family for family in families or FAMILIES.get(machine, ("none",)) if family not in kept]


def _kept(built: dict[str, Any], cxx: str, lasting: bool = False) -> dict[str, str]:
    """Return the compilers of the libraries that stay: with $CXX those that it made."""
    if not built or (cxx and built["CXX"] != cxx):
        return {}
    return {f: compiler for f, compiler in built["families"].items() if not lasting or not compiler.startswith("g++ ")}


def compile_all(
    folder: Path,
    machine: str,
    families: Sequence[str] = (),
    available: Callable[[], Iterable[Compiler | str]] = compilers,
) -> dict[str, Any]:
    """Write the libraries that the folder lacks (:func:`lacking`) and that a compiler can make. Returns what
    :func:`read_built` does.

    machine: ``x86_64`` or ``aarch64``
    Raises:  CompileError if there is no library then
    """
    if machine not in FAMILIES:
        raise CompileError(f"there are no kernels for {machine}, only for {' and '.join(FAMILIES)}")
    with _locked(folder):
        wanted = lacking(folder, machine, families)
        if not wanted:
            return read_built(folder)
        cxx = os.environ.get("CXX", "")
        kept = _kept(read_built(folder), cxx)
        compiled, failed, tried = _compile_by_first(folder, machine, wanted, available())
        if not compiled and not kept:
            raise CompileError("\n".join(["the kernels of the CPU could not be compiled. Tried:", *tried, REMEDIES]))
        built = {"digest": sources_digest(), "CXX": cxx, "families": kept | compiled, "failed": failed}
        _put_in_place(folder / BUILT, (json.dumps(built, indent=1) + "\n").encode())
        _remove_others(folder)
        return built


def _compile_by_first(
    folder: Path, machine: str, families: Sequence[str], available: Iterable[Compiler | str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Write libraries by the first compiler that can make one of them. Returns (the compiler of each that is compiled,
    why others are not, what was tried)."""
    tried, failed = list[str](), dict[str, str]()
    for compiler in available:
        if isinstance(compiler, str):
            tried.append(compiler)
            continue
        failed = _compile_families(compiler, machine, families, folder)
        if compiled := {family: compiler.name for family in families if family not in failed}:
            return compiled, failed, tried
        tried += [f"{compiler.name}: {why}" for why in dict.fromkeys(failed.values())]
    return {}, failed, tried


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process compiles into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compile_families(compiler: Compiler, machine: str, families: Sequence[str], folder: Path) -> dict[str, str]:
    """Compile families beside one another. Returns why, of those that fail."""

    def attempt(family: str) -> tuple[str, str]:
        try:
            compile_family(compiler, machine, family, folder / file_name(family), pool=pool)
        except CompileError as error:
            return family, _brief(str(error))
        return family, ""

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


def _remove_others(folder: Path) -> None:
    """Remove libraries of other sources."""
    for path in folder.glob("kernels-*"):
        if not path.stem.endswith(sources_digest()[:12]):
            path.unlink(missing_ok=True)


def _brief(text: str) -> str:
    """The line of a compiler's words that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def main(how: str) -> None:
    """Complete the libraries of this checkout; see above. Raises: CompileError"""
    machine = platform.machine()
    families = lacking(LIBRARIES, machine)
    if families and how == "beside":
        with (LIBRARIES / LOG).open("wb") as log:
            command = ["nice", sys.executable, __file__, "all"]
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
        print(f"compiling faster kernels, and those of other CPUs, beside: {LIBRARIES / LOG}")
    elif families:
        with _zig_at_hand():
            built = compile_all(LIBRARIES, machine)
        for family, why in built["failed"].items():
            print(f"not compiled: {family}: {why}")


@contextmanager
def _zig_at_hand() -> Iterator[None]:
    """Let this Python have zig, fetched by pip if need be and if pip can."""
    version = [sys.executable, "-m", "ziglang", "version"]
    if os.environ.get("CXX") or not subprocess.run(version, capture_output=True).returncode:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ringtrain-zig-") as scratch:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, "--target", scratch, ZIG]).returncode:
            print(f"pip could not install {ZIG}")
        os.environ["PYTHONPATH"] = os.pathsep.join([scratch, *filter(None, [os.environ.get("PYTHONPATH")])])
        yield


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (CompileError, OSError) as error:
        sys.exit(f"kernels for other CPUs are not compiled: {error}")
