import pytest

from ringtrain import Communicator
from ringtrain.transport.loopback import Loopback


@pytest.fixture
def alone():
    return Communicator(Loopback())
