"""Who has died while others start the MPI, as the children of a launcher tell."""

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
        self.children = {child: child_rank for child, child_rank in self.children.items() if child_rank != rank}
        self._tell()

    def _tell(self):
        text = "".join(f"{child} " for child in self.children)
        (self.proc / str(LAUNCHER) / "task" / "50" / "children").write_text(text)

    def roll(self, rank, local, size):
        numbers = {"RANK": rank, "SIZE": size, "LOCAL_SIZE": local}
        environ = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in numbers.items()}
        return DeathsBeforeInit({**environ, "PMIX_NAMESPACE": "job@1"}, LAUNCHER, self.proc, lambda: self.now)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def told_after(node, roll, seconds):
    """At once, and when so much has passed."""
    first = roll.lost()
    node.now += seconds
    return first, roll.lost()


@pytest.mark.parametrize(
    ("started", "roll", "words"),
    [
        ((0, 1, 2), (0, 3, 3), None),  # all are there
        ((0, 2), (0, 3, 3), ("rank 1",)),  # dead before any look, with all ranks on the node
        ((4, 5), (4, 3, 8), ("1 of 3 ranks", socket.gethostname())),  # elsewhere they are counted
        ((1,), (0, 3, 3), None),  # this rank itself is not seen, as in a container of its own
    ],
)
def test_who_is_missing_is_named_when_it_has_had_its_time(node, started, roll, words):
    for rank in started:
        node.start(rank)
    first, then = told_after(node, node.roll(*roll), GONE_S)
    assert first == "" and then == (says(*words) if words else "")


def test_who_dies_while_others_start_is_named_when_those_have_had_their_time(node):
    for rank in (4, 5, 6):
        node.start(rank)
    roll = node.roll(4, 3, 8)
    assert told_after(node, roll, 1000) == ("", "")
    node.kill(5)
    assert told_after(node, roll, GONE_S - 0.1) == ("", "")
    node.now += 0.1
    assert roll.lost() == says("rank 5", socket.gethostname(), "--elastic")


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


def test_it_is_not_called_where_the_launcher_ends_all_ranks_with_one():
    assert roll_of({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) is no_words
