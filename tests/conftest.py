import threading

import pytest
from hypothesis import settings

PATIENCE_S = 60.0  # only a failure waits for it

settings.register_profile("untimed", deadline=None)  # the machine may be busy
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """One that is left would run beside all later tests, and what these measure would be its doing."""
    before = set(threading.enumerate())
    yield
    new = [thread for thread in threading.enumerate() if thread not in before]
    for thread in new:
        thread.join(PATIENCE_S)
    assert not [thread.name for thread in new if thread.is_alive()]
