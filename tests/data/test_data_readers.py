"""Every reader of files that others made, on files that are spoiled: it reads them or says in one message why not."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.readers import READERS
from tests.tiers import lasting

USUAL = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)
WORDS = (
    b"", b"\0", b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"-1", b"1e999", b"nan", b"9" * 400, b"[" * 3000, b"{}",
    b'"\\u001b[2J"', b"true", b"null", "²\u202e".encode(), b"../../x",
)  # fmt: skip


@st.composite
def spoiled(draw, seeds: list[bytes]) -> bytes:
    """A seed with up to four pieces of it exchanged for others, or cut short."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from((0, 1, 2, 4, 8, 40, 1 << 20))))
        data = data[:start] + draw(st.sampled_from(WORDS) | st.binary(max_size=8)) + data[stop:]
    return data


@pytest.mark.parametrize("name", READERS)
def test_valid_files_are_read(name, tmp_path):
    reader = READERS[name]
    for number, data in enumerate(reader.seeds()):
        said = reader.judge(data, tmp_path / str(number))
        assert (said == "") == (name not in ("archive", "checkpoint as it is")), said  # an archive with two files only


@pytest.mark.parametrize("name", READERS)
def test_spoiled_files_are_read_or_refused_in_words(name, tmp_path_factory):
    reader = READERS[name]

    @settings(USUAL, max_examples=lasting(24, 48))
    @given(spoiled(reader.seeds()) | st.binary(max_size=200))  # and bytes of no meaning
    def spoil(data):
        reader.judge(data, tmp_path_factory.mktemp("room"))

    spoil()
