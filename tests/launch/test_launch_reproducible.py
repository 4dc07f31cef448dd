"""The environment in which PyTorch computes the same bits."""

import pytest

from ringtrain.errors import UsageError
from ringtrain.launch.reproducible import AVX2, LOWEST, fixed_variables
from tests.says import says

FLAGS = {"avx2", "fma", "sse2"}


def test_threads_are_one_or_as_the_user_says():
    assert fixed_variables(AVX2, {}, FLAGS)["OMP_NUM_THREADS"] == "1"
    variables = fixed_variables(AVX2, {"OMP_NUM_THREADS": "8"}, FLAGS)
    assert variables["OMP_NUM_THREADS"] == "8" and variables["ATEN_CPU_CAPABILITY"] == "avx2"


def test_a_cpu_without_the_instructions_is_refused_by_name():
    with pytest.raises(UsageError, match=says("no fma", "--reproducible-isa lowest")):
        fixed_variables(AVX2, {}, {"avx2"})
    assert fixed_variables(LOWEST, {}, set())["MKL_CBWR"] == "COMPATIBLE"


def test_tunables_of_the_user_stay_but_for_those_that_choose_instructions():
    before = {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX2"}
    after = fixed_variables(LOWEST, before, set())["GLIBC_TUNABLES"]
    assert after.startswith("glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX2,-FMA") and after.count("hwcaps") == 1
    assert fixed_variables(LOWEST, {"GLIBC_TUNABLES": after}, set())["GLIBC_TUNABLES"] == after
