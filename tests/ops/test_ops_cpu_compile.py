"""The compilers that are tried, what is kept of a build that fails in part, and the message of one that fails."""

import os
import re
import shutil
import stat
import sys
import threading

import pytest

from ringtrain.ops.cpu import compile as kernels
from ringtrain.ops.cpu.compile import FAMILIES, REMEDIES, CompileError, compile_all, file_name, lacking

SOURCES = kernels.SOURCES
V4, V3, V2 = FAMILIES["x86_64"]
FAKE = """#!{python}
import pathlib, sys
if any(word in sys.argv for word in {refused}):
    sys.exit("cc1plus: note: nothing\\nkernels.cpp:1: error: refused by {name}\\nmore")
if sys.argv[-1] == "version":
    sys.exit(print("0.13"))
if sys.argv[-1] == "-dumpfullversion":
    sys.exit(print("{version}"))
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


def fake(tmp_path, name, refused=(), version="1.2.3"):
    """A compiler that writes its arguments, unless they have a word that it refuses."""
    path = tmp_path / "bin" / name
    path.write_text(FAKE.format(python=os.path.realpath(PYTHON), name=name, refused=list(refused), version=version))
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
    assert not list(folder.iterdir())


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
    assert set(compile_all(folder, "x86_64")["families"].values()) == {used}
    library = (folder / file_name(V4)).read_text()
    assert library.startswith(used.removeprefix("CXX=").split()[0]) and "-shared" in library
    assert list(kernels.read_built(folder)["families"]) == [V4, V3, V2] and not lacking(folder, "x86_64")


def test_zig_is_the_first_unless_the_user_names_another(folder):
    fake(folder.parent, "python")
    fake(folder.parent, "g++")
    assert compile_all(folder, "aarch64")["families"] == {"aarch64": "zig 0.13"}
    assert "-target aarch64-linux-gnu.2.28 -shared" in (folder / file_name("aarch64")).read_text()


def test_families_that_a_compiler_refuses_are_told_and_the_others_are_kept(folder, monkeypatch):
    old = fake(folder.parent, "old", ["-march=x86-64-v4"])
    monkeypatch.setenv("CXX", str(old))
    built = compile_all(folder, "x86_64")
    assert (list(built["families"]), built["failed"]) == ([V3, V2], {V4: "kernels.cpp:1: error: refused by old"})
    assert {path.name for path in folder.iterdir()} == {"built.json", file_name(V3), file_name(V2)}
    assert not lacking(folder, "x86_64")  # this compiler can do no more
    monkeypatch.delenv("CXX")
    assert lacking(folder, "x86_64") == [V4]  # another may
    monkeypatch.setenv("CXX", "other")
    assert lacking(folder, "x86_64") == [V4, V3, V2]


def test_a_compiler_that_makes_no_family_gives_way_to_the_next(folder, monkeypatch):
    monkeypatch.setenv("CXX", str(fake(folder.parent, "broken", ["-c"])))
    fake(folder.parent, "clang++")
    assert set(compile_all(folder, "x86_64")["families"].values()) == {"clang++"}
    fake(folder.parent, "clang++", ["-shared"])
    monkeypatch.setenv("CXX", os.environ["CXX"] + " ")  # of another compiler
    with pytest.raises(CompileError, match=re.escape("broken: kernels.cpp:1: error: refused by broken\n")):
        compile_all(folder, "x86_64")


def test_a_build_that_fails_leaves_the_old_libraries(folder, monkeypatch):
    fake(folder.parent, "g++")
    compile_all(folder, "x86_64")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    fake(folder.parent, "g++", ["-c"])
    monkeypatch.setattr(kernels, "sources_digest", lambda: "0" * 64)
    with pytest.raises(CompileError):
        compile_all(folder, "x86_64")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_no_compiler_can_make_leaves_what_is_there(folder):
    fake(folder.parent, "g++", ["-march=x86-64-v4"])
    for _ in range(2):  # the second time nothing that can be made lacks
        built = compile_all(folder, "x86_64")
        assert (list(built["families"]), list(built["failed"])) == ([V3, V2], [V4])
    assert kernels.read_built(folder) == built


def test_libraries_of_other_sources_are_not_taken_and_then_removed(folder, monkeypatch):
    fake(folder.parent, "g++")
    compile_all(folder, "x86_64")
    monkeypatch.setattr(kernels, "sources_digest", lambda: "0" * 64)
    assert kernels.read_built(folder) == {} and lacking(folder, "x86_64") == [V4, V3, V2]
    compile_all(folder, "x86_64")
    assert len(list(folder.iterdir())) == 4 and (folder / f"kernels-{V4}-{'0' * 12}.so").exists()


def test_a_library_that_is_missing_or_a_record_that_is_spoilt_is_not_up_to_date(folder):
    fake(folder.parent, "g++")
    compile_all(folder, "x86_64")
    (folder / file_name(V2)).unlink()
    assert lacking(folder, "x86_64")
    for text in ("", "{", "{}"):
        (folder / "built.json").write_text(text)
        assert lacking(folder, "x86_64")
    assert lacking(folder, "ppc64le")


def test_a_checkout_compiles_its_own_family_first_by_a_system_compiler_with_the_bits_of_zig(folder, monkeypatch):
    monkeypatch.setattr(kernels.platform, "machine", lambda: "x86_64")
    known = kernels.SAME_BITS["x86_64"][0]
    fake(folder.parent, "python")
    fake(folder.parent, "g++", version="1.2.3")
    assert compile_all(folder, "x86_64", [V2], kernels.checkout_compilers)["families"] == {V2: "zig 0.13"}
    fake(folder.parent, "g++", version=known)
    assert lacking(folder, "x86_64", [V3]) == [V3] and not lacking(folder, "x86_64", [V2])
    built = compile_all(folder, "x86_64", [V3], kernels.checkout_compilers)
    assert built["families"] == {V2: "zig 0.13", V3: f"g++ {known}"} == kernels.read_built(folder)["families"]
    # zig's, which is faster, takes its place with all others; an installation by pip does not copy it.
    assert not lacking(folder, "x86_64", [V3]) and lacking(folder, "x86_64") == [V4, V3]
    assert compile_all(folder, "x86_64")["families"] == dict.fromkeys([V2, V3, V4], "zig 0.13")


def test_the_users_compiler_is_the_one_of_a_checkout_too(folder, monkeypatch):
    fake(folder.parent, "g++", version=kernels.SAME_BITS["x86_64"][0])
    fake(folder.parent, "mine")
    monkeypatch.setenv("CXX", "mine")
    assert compile_all(folder, "x86_64", [V3], kernels.checkout_compilers)["families"] == {V3: "CXX=mine"}


def test_a_second_process_waits_for_the_first_and_compiles_nothing_again(folder):
    fake(folder.parent, "g++")
    results = []
    waiting = threading.Thread(target=lambda: results.append(compile_all(folder, "x86_64")))
    with kernels._locked(folder):
        waiting.start()
        assert not results and not list(folder.iterdir())
    waiting.join()
    fake(folder.parent, "g++", ["-c"])
    assert compile_all(folder, "x86_64") == results[0]


def test_the_other_families_are_compiled_beside_and_one_line_says_so(folder, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "LIBRARIES", folder)
    monkeypatch.setattr(kernels.platform, "machine", lambda: "x86_64")
    fake(folder.parent, "g++", version=kernels.SAME_BITS["x86_64"][0])
    compile_all(folder, "x86_64", [V3], kernels.checkout_compilers)
    fake(folder.parent, "python")
    begun = []
    with monkeypatch.context() as patch:
        patch.setattr(kernels.subprocess, "Popen", lambda command, **_: begun.append(command))
        kernels.main("beside")
    (line,) = capsys.readouterr().out.splitlines()
    assert str(folder) in line and begun[0][-2:] == [kernels.__file__, "all"]
    kernels.main("all")
    assert set(kernels.read_built(folder)["families"].values()) == {"zig 0.13"} and not lacking(folder, "x86_64")
    kernels.main("beside")
    assert len(begun) == 1 and not capsys.readouterr().out


def test_without_zig_and_a_network_another_compiler_makes_what_lacks(folder, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "LIBRARIES", folder)
    monkeypatch.setattr(kernels.platform, "machine", lambda: "x86_64")
    fake(folder.parent, "python", ["version", "pip"])
    fake(folder.parent, "g++")
    kernels.main("all")
    assert capsys.readouterr().out.startswith("pip could not install ziglang")
    assert set(kernels.read_built(folder)["families"].values()) == {"g++"}
