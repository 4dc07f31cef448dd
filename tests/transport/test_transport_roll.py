"""Who has died while others start the MPI, as the children of a launcher tell."""

import re
import socket

import pytest

from ringtrain.transport.activity import no_words
from ringtrain.transport.mpi.deaths_before_init import GONE_S, TURN_S, DeathsBeforeInit, roll_of
from tests.says import says

LAUNCHER = 50


class Node:
    """The processes of a node, below a folder that stands for /proc; and a clock."""

    def __init__(self, folder):
        self.proc, self.now = folder, 100.0
        (folder / str(LAUNCHER) / "task" / "50").mkdir(parents=True)
        (folder / str(LAUNCHER) / "task" / "51").mkdir()
        (folder / str(LAUNCHER) / "task" / "51" / "children").write_text("")
        self.children = {}

    def start(self, rank, job="job@1"):
        child = 1000 + len(list(self.proc.iterdir()))
        (self.proc / str(child)).mkdir()
        words = f"PATH=/bin\0OMPI_COMM_WORLD_RANK={rank}\0PMIX_NAMESPACE={job}\0"
        (self.proc / str(child) / "environ").write_text(words)
        self.children[child] = rank
        self._tell()

    def kill(self, rank):
        self.children = {child: held for child, held in self.children.items() if held != rank}
        self._tell()

    def _tell(self):
        text = "".join(f"{child} " for child in self.children)
        (self.proc / str(LAUNCHER) / "task" / "50" / "children").write_text(text)

    def roll(self, rank, local, size):
        told = {"RANK": rank, "SIZE": size, "LOCAL_SIZE": local}
        environ = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in told.items()}
        return DeathsBeforeInit({**environ, "PMIX_NAMESPACE": "job@1"}, LAUNCHER, self.proc, lambda: self.now)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def told_after(node, roll, seconds):
    """At once, and when so much has passed."""
    first = roll.lost()
    node.now += seconds
    return first, roll.lost()


def test_nobody_is_missing_where_all_are_there(node):
    for rank in (0, 1, 2):
        node.start(rank)
    assert told_after(node, node.roll(0, 3, 3), 1000) == ("", "")


def test_who_dies_while_others_start_is_named_when_those_have_had_their_time(node):
    for rank in (4, 5, 6):
        node.start(rank)
    roll = node.roll(4, 3, 8)
    assert told_after(node, roll, 1000) == ("", "")
    node.kill(5)
    assert told_after(node, roll, GONE_S - 0.1) == ("", "")
    node.now += 0.1
    died = says("rank 5", socket.gethostname(), "--elastic")
    assert roll.lost() == died


def test_one_that_died_before_any_look_is_known_where_all_ranks_are_on_the_node(node):
    node.start(0)
    node.start(2)
    first, then = told_after(node, node.roll(0, 3, 3), GONE_S)
    assert first == "" and re.match(says("rank 1"), then)


def test_elsewhere_it_is_counted(node):
    node.start(4)
    node.start(5)
    first, then = told_after(node, node.roll(4, 3, 8), GONE_S)
    assert first == "" and then.startswith(f"1 of 3 ranks ({socket.gethostname()}) died")


def test_the_time_begins_anew_as_long_as_ranks_are_being_started(node):
    node.start(0)
    roll = node.roll(0, 3, 3)
    for rank in (1, 2):
        assert told_after(node, roll, GONE_S - 0.1) == ("", "")
        node.start(rank)
    assert told_after(node, roll, 1000) == ("", "")


def test_ranks_tell_in_turn(node):
    node.start(0)
    node.start(2)
    second = node.roll(2, 3, 3)
    assert told_after(node, second, GONE_S) == ("", "")
    node.now += TURN_S
    assert second.lost().startswith("rank 1 (")


def test_children_of_other_jobs_do_not_count_nor_those_that_are_no_ranks_yet(node):
    node.start(0)
    node.start(1, job="job@2")
    node.start("")
    assert told_after(node, node.roll(0, 2, 2), GONE_S)[1].startswith("rank 1 (")


def test_nothing_is_said_where_this_rank_itself_is_not_seen(node):
    """In a container of its own, say."""
    node.start(1)
    assert told_after(node, node.roll(0, 3, 3), 1000) == ("", "")


def test_it_is_not_called_where_the_launcher_ends_all_ranks_with_one():
    assert roll_of({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) is no_words
