"""What is chosen from what was found, and why; and that all ranks choose alike."""

import pytest

from ringtrain.errors import DeviceError
from ringtrain.transport.cuda_aware.decision import (
    AUTO,
    DIRECT,
    NO,
    STAGED,
    UNKNOWN,
    YES,
    CudaTrial,
    Evidence,
    agree_on_way,
    decide_way,
    device_names,
    merge_evidence,
    visibility_evidence,
    worth_trying,
)
from ringtrain.transport.world import choose_way
from tests.loopback.world import LoopbackWorld
from tests.says import says


def looked(**answers):
    answers = {"query": NO, "ucx": NO} | answers
    return [Evidence(name, answer, f"{name}'s why") for name, answer in answers.items()]


SAME = Evidence("sight", YES, says("same", "devices"))


def rungs(sight=YES, **answers):
    return [*looked(**answers), Evidence("sight", sight, "sight's why")]


FAST, SLOW = CudaTrial(YES, "moved", 40.0, 12.5), CudaTrial(YES, "moved", 0.35, 12.5)
CRASH = CudaTrial(NO, "segmentation fault in direct messages of 1 bytes")
NO_MPIRUN = CudaTrial(UNKNOWN, "no mpirun is found for a trial")


@pytest.mark.parametrize(
    ("asked", "evidence", "worth"),
    [
        (AUTO, rungs(), False),  # the plain wheel: nothing speaks for it
        (AUTO, rungs(ucx=YES), True),  # an MPI built without, on a UCX built with
        (AUTO, rungs(query=YES), True),
        (AUTO, rungs(query=UNKNOWN), True),  # an MPI that cannot be asked
        (AUTO, rungs(query=YES, sight=NO), False),  # a child of one rank sees what that one sees
        (DIRECT, rungs(), True),
    ],
)
def test_a_child_is_asked_where_something_speaks_for_it(asked, evidence, worth):
    assert worth_trying(asked, evidence) == worth


@pytest.mark.parametrize(
    ("asked", "trial", "way", "why"),
    [
        (STAGED, None, STAGED, says("--mpi-cuda")),
        (AUTO, None, STAGED, "query's why; ucx's why"),
        (AUTO, FAST, DIRECT, says(FAST.rates)),
        (AUTO, SLOW, STAGED, says(SLOW.rates)),
        (AUTO, CRASH, STAGED, says(CRASH.why)),
        (AUTO, NO_MPIRUN, STAGED, says(NO_MPIRUN.why)),
        (DIRECT, FAST, DIRECT, says("--mpi-cuda", FAST.rates)),
        (DIRECT, SLOW, DIRECT, says("--mpi-cuda", SLOW.rates)),
        (DIRECT, NO_MPIRUN, DIRECT, says("--mpi-cuda", NO_MPIRUN.why)),
    ],
)
def test_what_is_chosen_and_why(asked, trial, way, why):
    choice = decide_way(asked, rungs(), trial)
    assert (choice.way, choice.why) == (way, why)
    assert [rung.name for rung in choice.rungs] == ["query", "ucx", "sight"] + ["trial"] * (trial is not None)
    assert choice.words == says("directly" if way == DIRECT else "staged", why)


@pytest.mark.parametrize(
    ("answers", "merged"),
    [
        ([YES, YES], Evidence("query", YES, "of 0")),
        ([YES, NO, YES], Evidence("query", NO, says("of 1", 1))),
        ([YES, UNKNOWN], Evidence("query", UNKNOWN, says("of 1", 1))),
        ([UNKNOWN, UNKNOWN], Evidence("query", UNKNOWN, "of 0")),
    ],
)
def test_ranks_that_differ_are_a_no(answers, merged):
    assert merge_evidence([Evidence("query", answer, f"of {rank}") for rank, answer in enumerate(answers)]) == merged


def test_all_ranks_choose_alike_and_one_tries():
    tried = []

    def body(t):
        def attempt():
            tried.append(t.rank)
            return FAST

        return agree_on_way(t, AUTO, lambda: looked(query=YES if t.rank else UNKNOWN), SAME, attempt)

    choices = LoopbackWorld(3).run(body)
    assert choices[0] == choices[1] == choices[2] and tried == [0]
    assert choices[0].way == DIRECT
    answers = {"flag": UNKNOWN, "query": UNKNOWN, "ucx": NO, "sight": YES, "trial": YES}
    assert {rung.name: rung.answer for rung in choices[0].rungs} == answers


def test_direct_where_it_does_not_work_is_refused_everywhere():
    def body(t):
        with pytest.raises(DeviceError, match=says("--mpi-cuda", CRASH.why)) as caught:
            agree_on_way(t, DIRECT, looked, SAME, lambda: CRASH)
        return caught.value.everywhere, caught.value.exit_code

    assert LoopbackWorld(2).run(body) == [(True, 2)] * 2


def test_nothing_is_asked_on_one_rank_or_where_staging_is_wanted_nor_tried_where_it_is_not_worth_a_child():
    (alone,) = LoopbackWorld(1).run(lambda t: choose_way(t, AUTO, 0, "no:body"))
    assert (alone.way, alone.why, alone.rungs) == (STAGED, "", ()) and alone.words == ""
    (staged, _) = LoopbackWorld(2).run(lambda t: agree_on_way(t, STAGED, None, None, None))
    assert (staged.way, staged.why, len(staged.rungs)) == (STAGED, says("--mpi-cuda"), 1)
    (one, _) = LoopbackWorld(2).run(lambda t: agree_on_way(t, AUTO, looked, SAME, None))
    assert one.why == "query's why; ucx's why"
    assert one.words == says("query's why; ucx's why")


SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "all"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES=0,1"),
        (SRUN | {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES=0"),
        (SRUN | {"SLURM_GPU_BIND": "none"}, "all"),
        (SRUN | {"SLURM_GPU_BIND": "single:1"}, "SLURM_GPU_BIND=single:1 of task 1"),
        (SRUN | {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}, "SLURM_GPUS_PER_TASK=1 of task 1"),
        (SRUN | MPIRUN | {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES=0,1"),
    ],
)
def test_what_a_process_is_shown(environ, words):
    assert device_names(environ) == words


def test_ranks_of_one_node_that_are_shown_different_devices():
    assert visibility_evidence([(0, "a"), (0, "a"), (1, "b"), (1, "b")]) == SAME
    assert visibility_evidence([(0, "a"), (1, "b"), (1, "c"), (1, "b")]) == Evidence("sight", NO, says(1, "b", "c"))
