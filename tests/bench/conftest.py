import pytest

from ringtrain.bench import links


@pytest.fixture
def short_streams(monkeypatch):
    """Threads of one process have no link whose speed would have to be found out."""
    monkeypatch.setattr(links, "STREAM_S", 0.002)
