import pytest
from small_runs import DROPOUT_NET, losses

from ringtrain.errors import ConfigError
from ringtrain.train.step.slow_rank import Pause, pause_of
from tests.loopback.world import LoopbackWorld
from tests.says import says


def test_it_rests_for_as_long_as_its_work_takes_it_longer():
    worked, rests = iter([10.0, 12.0, 12.5, 13.0, 13.0]), []
    pause = Pause(3.0, worked=lambda: next(worked), rest=rests.append)
    pause()
    pause()
    assert rests == [4.0, 1.0]


def test_one_rank_is_slowed_and_the_others_are_not():
    assert [pause_of("1:2", rank, range(3)) is None for rank in range(3)] == [True, False, True]
    assert pause_of(None, 0, range(1)) is None


@pytest.mark.parametrize(
    ("slow", "words"),
    [*((slow, []) for slow in ("1", "1:", "a:2", "1:2:3", "1:0.5", "1:nan", "1:2000")), ("2:2", ["ranks 0, 1"]),
     ("-1:2", ["ranks 0, 1"])],
)  # fmt: skip
def test_no_slowness_and_a_rank_that_does_not_train_are_refused(slow, words):
    with pytest.raises(ConfigError, match=says("--inject-slowdown", *words)):
        pause_of(slow, 0, range(2))


def test_what_is_learnt_does_not_hang_on_it():
    plain, slow = (
        LoopbackWorld(2).run(lambda t, flags=flags: losses(t, DROPOUT_NET, 2, **flags)[:2])
        for flags in ({}, {"inject_slowdown": "0:1.5"})
    )
    assert plain == slow
