import pytest

from ringtrain.bench.measure import links


@pytest.fixture
def short_streams(monkeypatch):
    """Threads of one process have no link whose speed would have to be found out."""
    for name, value in {"STREAM_S": 0.002, "ALONE_PIECES": 2, "BESIDE_S": 0.002, "ADDITIONS": 1}.items():
        monkeypatch.setattr(links, name, value)
