import pytest
from small_runs import DROPOUT_NET, losses

from ringtrain.errors import ConfigError
from ringtrain.train.step.slow_rank import SlowedInput, slowed
from tests.loopback.world import LoopbackWorld
from tests.says import says


class Given:
    def load(self, *what):
        return what


def test_it_rests_for_as_long_as_its_work_takes_it_longer():
    worked, rests = iter([10.0, 12.0, 12.5, 13.0, 13.0]), []
    feed = SlowedInput(Given(), 3.0, worked=lambda: next(worked), rest=rests.append)
    assert feed.load("space", "a", 0, 1) == ("space", "a", 0, 1)
    feed.load("space", "b", 0, 1)
    assert rests == [4.0, 1.0]


def test_one_rank_is_slowed_and_the_others_are_not():
    feed = Given()
    assert [slowed(feed, "1:2", rank, range(3)) is feed for rank in range(3)] == [True, False, True]
    assert slowed(feed, None, 0, range(1)) is feed


@pytest.mark.parametrize("slow", ["1", "1:", "a:2", "1:2:3", "1:0.5", "1:nan", "1:2000"])
def test_what_is_no_slowness(slow):
    with pytest.raises(ConfigError, match=says("--inject-slowdown")):
        slowed(Given(), slow, 0, range(2))


@pytest.mark.parametrize("slow", ["2:2", "-1:2"])
def test_a_rank_that_is_not_there(slow):
    with pytest.raises(ConfigError, match=says("--inject-slowdown", "ranks 0, 1")):
        slowed(Given(), slow, 0, range(2))


def test_what_is_learnt_does_not_hang_on_it():
    plain, slow = (
        LoopbackWorld(2).run(lambda t, flags=flags: losses(t, DROPOUT_NET, 2, **flags)[:2])
        for flags in ({}, {"inject_slowdown": "0:1.5"})
    )
    assert plain == slow
