import pytest

from ringtrain.bench.measure import round_trips
from ringtrain.bench.model import calibration


@pytest.fixture
def short_streams(monkeypatch):
    """Threads of one process have no link whose speed would have to be found out."""
    monkeypatch.setattr(round_trips, "STREAM_S", 0.002)
    monkeypatch.setattr(round_trips, "ALONE_PIECES", 2)
    monkeypatch.setattr(calibration, "BESIDE_S", 0.002)
    monkeypatch.setattr(calibration, "ADDITIONS", 1)
