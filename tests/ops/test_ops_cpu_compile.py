"""The compilers that are tried, what is kept of a build that fails in part, and the message of one that fails."""

import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from ringtrain.ops.cpu import compile as kernels
from ringtrain.ops.cpu.compile import FAMILIES, REMEDIES, CompileError, Compiler, compile_all, file_name, up_to_date

SOURCES = kernels.SOURCES
V4, V3, V2 = FAMILIES["x86_64"]
FAKE = """#!{python}
import pathlib, sys
if any(word in sys.argv for word in {refused}):
    sys.exit("cc1plus: note: nothing\\nkernels.cpp:1: error: refused by {name}\\nmore")
if sys.argv[-1] == "version":
    sys.exit(print("0.13"))
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("{name} " + " ".join(sys.argv[1:]))
"""


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Two of the sources: each is a call of a compiler for each type and family."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in (*SOURCES.glob("*.hpp"), SOURCES / "threads.cpp", SOURCES / "elementwise.cpp"):
        shutil.copy(path, sources)
    monkeypatch.setattr(kernels, "SOURCES", sources)
    forget = kernels.sources_digest.cache_clear
    forget()
    yield
    forget()


@pytest.fixture
def folder(few, tmp_path, monkeypatch):
    """An empty PATH, and no zig."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "executable", str(fake(tmp_path, "python", ["-m"])))
    return tmp_path / "libraries"


def fake(tmp_path, name, refused=()):
    """A compiler that writes its arguments, unless they have a word that it refuses."""
    path = tmp_path / "bin" / name
    path.write_text(FAKE.format(python=os.path.realpath(PYTHON), name=name, refused=list(refused)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


PYTHON = sys.executable


def test_without_a_compiler_one_message_names_what_was_tried_and_the_remedies(folder):
    with pytest.raises(CompileError) as error:
        compile_all(folder, "x86_64")
    wanted = [
        "zig: kernels.cpp:1: error: refused by python",
        "g++: not on PATH",
        "clang++: not on PATH",
        *REMEDIES.split("\n"),
    ]
    assert str(error.value).split("\n")[1:] == wanted
    assert not folder.exists()


def test_a_machine_without_kernels_is_named(folder):
    with pytest.raises(CompileError, match=r"^there are no kernels for ppc64le, only for x86_64 and aarch64$"):
        compile_all(folder, "ppc64le")


@pytest.mark.parametrize(
    ("installed", "cxx", "used"),
    [
        (["g++", "clang++"], "", "g++"),
        (["clang++"], "", "clang++"),
        (["g++", "mine"], "mine -pipe", "CXX=mine -pipe"),
        (["g++"], "mine", "g++"),
    ],
)
def test_compilers_are_tried_in_order(folder, monkeypatch, installed, cxx, used):
    monkeypatch.setenv("CXX", cxx)
    for name in installed:
        fake(folder.parent, name)
    assert compile_all(folder, "x86_64")["compiler"] == used
    library = (folder / file_name(V4)).read_text()
    assert library.startswith(used.removeprefix("CXX=").split()[0]) and "-shared" in library
    assert kernels.read_built(folder)["families"] == [V4, V3, V2] and up_to_date(folder, "x86_64")


def test_zig_is_the_first_unless_the_user_names_another(folder):
    fake(folder.parent, "python")
    fake(folder.parent, "g++")
    assert compile_all(folder, "aarch64")["compiler"] == "zig 0.13"
    assert "-target aarch64-linux-gnu.2.28 -shared" in (folder / file_name("aarch64")).read_text()


def test_families_that_a_compiler_refuses_are_told_and_the_others_are_kept(folder, monkeypatch):
    old = fake(folder.parent, "old", ["-march=x86-64-v4"])
    monkeypatch.setenv("CXX", str(old))
    built = compile_all(folder, "x86_64")
    assert (built["families"], built["failed"]) == ([V3, V2], {V4: "kernels.cpp:1: error: refused by old"})
    assert {path.name for path in folder.iterdir()} == {"built.json", file_name(V3), file_name(V2)}
    assert up_to_date(folder, "x86_64")  # this compiler can do no more
    monkeypatch.delenv("CXX")
    assert not up_to_date(folder, "x86_64")  # another may
    monkeypatch.setenv("CXX", "other")
    assert not up_to_date(folder, "x86_64")


def test_a_compiler_that_makes_no_family_gives_way_to_the_next(folder, monkeypatch):
    monkeypatch.setenv("CXX", str(fake(folder.parent, "broken", ["-c"])))
    fake(folder.parent, "clang++")
    assert compile_all(folder, "x86_64")["compiler"] == "clang++"
    fake(folder.parent, "clang++", ["-shared"])
    with pytest.raises(CompileError, match=re.escape("broken: kernels.cpp:1: error: refused by broken\n")):
        compile_all(folder, "x86_64")


def test_a_build_that_fails_leaves_the_old_libraries(folder):
    fake(folder.parent, "g++")
    compile_all(folder, "x86_64")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    fake(folder.parent, "g++", ["-c"])
    with pytest.raises(CompileError):
        compile_all(folder, "x86_64")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_libraries_of_other_sources_are_not_taken_and_then_removed(folder, monkeypatch):
    fake(folder.parent, "g++")
    compile_all(folder, "x86_64")
    monkeypatch.setattr(kernels, "sources_digest", lambda: "0" * 64)
    assert kernels.read_built(folder) == {} and not up_to_date(folder, "x86_64")
    compile_all(folder, "x86_64")
    assert len(list(folder.iterdir())) == 4 and (folder / f"kernels-{V4}-{'0' * 12}.so").exists()


def test_a_library_that_is_missing_or_a_record_that_is_spoilt_is_not_up_to_date(folder):
    fake(folder.parent, "g++")
    compile_all(folder, "x86_64")
    (folder / file_name(V2)).unlink()
    assert not up_to_date(folder, "x86_64")
    for text in ("", "{", "{}"):
        (folder / "built.json").write_text(text)
        assert not up_to_date(folder, "x86_64")
    assert not up_to_date(folder, "ppc64le")


def test_the_digest_is_of_every_source(tmp_path, monkeypatch):
    shutil.copytree(kernels.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(kernels, "SOURCES", tmp_path / "sources")
    digest = kernels.sources_digest.__wrapped__
    assert digest() == kernels.sources_digest()
    (tmp_path / "sources/notes.txt").write_text("no source")
    assert digest() == kernels.sources_digest()
    for path in sorted(kernels.SOURCES.glob("*pp")):
        before = digest()
        path.write_text(path.read_text() + "\n")
        assert digest() != before


def test_flags_keep_the_order_of_additions():
    flags = set(kernels.FLAGS)
    assert "-ffp-contract=off" in flags and not {"-ffast-math", "-Ofast", "-fassociative-math"} & flags


@pytest.mark.parametrize(
    ("command", "zig"), [("g++", False), ("ccache g++ -m64", False), ("python3 -m ziglang c++", True)]
)
def test_the_users_compiler_may_be_zig(monkeypatch, command, zig):
    monkeypatch.setenv("CXX", command)
    monkeypatch.setattr(kernels.shutil, "which", lambda name: Path("/") / name)
    assert next(kernels.compilers()) == Compiler(f"CXX={command}", tuple(command.split()), zig)
