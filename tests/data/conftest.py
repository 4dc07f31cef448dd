import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from data_makers import content  # noqa: E402

from ringtrain.data.format import write_dataset  # noqa: E402


@pytest.fixture
def tiny(tmp_path):
    """A good file."""
    path = tmp_path / "tiny.h5"
    write_dataset(path, content())
    return path
