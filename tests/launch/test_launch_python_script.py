"""What `python -m ringtrain.torch` tells a script: nothing here needs PyTorch."""

import pytest

from ringtrain.errors import UsageError
from ringtrain.launch.python_script import asked_deadline, fair_threads, set_variables, torchrun_variables
from ringtrain.transport.loopback import Loopback
from tests.loopback.world import LoopbackWorld
from tests.says import says


def test_the_deadline_of_the_environment():
    assert asked_deadline({}) is None and asked_deadline({"RINGTRAIN_DEADLINE_S": "2.5"}) == 2.5
    with pytest.raises(UsageError, match=says("RINGTRAIN_DEADLINE_S", "'x'")):
        asked_deadline({"RINGTRAIN_DEADLINE_S": "x"})


def test_ranks_on_two_nodes_are_told_their_places():
    variables = LoopbackWorld(3, nodes=2).run(lambda transport: torchrun_variables(transport.rank_info, "first"))
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [[each[name] for name in names] for each in variables] == [
        ["0", "3", "0", "2", "0", "2"],
        ["1", "3", "1", "2", "0", "2"],
        ["2", "3", "0", "1", "1", "2"],
    ]
    assert {each["MASTER_ADDR"] for each in variables} == {"first"}


def test_an_address_stays_and_a_rank_of_an_outer_launcher_does_not():
    seat = Loopback().rank_info
    environ = {"RANK": "7", "MASTER_PORT": "1234"}
    set_variables(environ, torchrun_variables(seat, "here"))
    assert (environ["RANK"], environ["MASTER_PORT"], environ["MASTER_ADDR"]) == ("0", "1234", "here")


@pytest.mark.parametrize(
    ("cores", "neighbours", "threads"),
    [
        ([0], [[0], [1]], 1),  # bound to a core
        ([0, 1, 2, 3], [[0, 1, 2, 3]] * 2, 2),  # not bound
        ([0, 1], [[0, 1]] * 4, 1),  # more ranks than cores
        ([4, 5, 6, 7], [[0, 1, 2, 3], [4, 5, 6, 7]], 4),  # bound to a socket
    ],
)
def test_cores_are_divided_among_the_ranks_that_share_them(cores, neighbours, threads):
    assert fair_threads(cores, neighbours) == threads
