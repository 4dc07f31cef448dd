import pytest
from data_makers import content

from ringtrain.data.file.write import write_dataset


@pytest.fixture
def tiny(tmp_path):
    """A good file."""
    path = tmp_path / "tiny.h5"
    write_dataset(path, content())
    return path
