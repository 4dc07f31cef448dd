"""Sizes, bounds, layouts, cores, words: pure functions of what was found."""

import math
import socket

import pytest

from ringtrain import parsing
from ringtrain.bench.header import ranges, relevant, why_cores_are_shared
from ringtrain.bench.measure.links import BETWEEN, INSIDE, Calibration, LinkClass
from ringtrain.bench.measure.memory import available_bytes, check_memory
from ringtrain.bench.model.bounds import bound_s
from ringtrain.bench.sweep.sizes import UNKNOWN_BYTES, of_buckets, scrub_bytes, swept, whole_elements
from ringtrain.errors import UsageError
from ringtrain.humanize import format_bytes, format_percent, format_rate, format_seconds, plural
from ringtrain.memory.arena import lay_out
from ringtrain.nn import spec
from tests.loopback.world import LoopbackWorld
from tests.says import says


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4096", 4096), ("64K", 65536), ("1.5MiB", 3 << 19), ("2g", 2 << 30), ("0", 0), ("8B", 8)]
)
def test_sizes_as_people_write_them(text, nbytes):
    assert parsing.size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-4", "1e6", "100E", "4 furlongs", "9999999G", "9" * 400 + "G"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match=says(text or "''")):
        parsing.size(text)


def test_sizes_of_a_sweep_and_of_a_models_buckets():
    assert swept(1024, 10_000, 2) == [1024, 2048, 4096, 8192]
    assert swept(5, 5, 2) == [5]
    assert whole_elements([1, 5, 7, 4096], 4) == [4, 4096]
    for wrong in ((2, 1, 2), (1, 2, 1), (1, 2, 0.5), (1, 2, math.nan), (1, 2, math.inf), (0, 2, 2)):
        with pytest.raises(UsageError, match=r"-b|-f"):
            swept(*wrong)
    with pytest.raises(UsageError, match=says("1.0001", "69,318", "1,000")):
        swept(1, 1024, 1.0001)
    spans = lay_out(spec.load_model("lenet").graph().parameters())
    assert of_buckets(spans, 4, bucket_bytes=1 << 40) == [4 * spans[-1].stop]
    assert len(of_buckets(spans, 4, bucket_bytes=1)) == len({s.stop - s.start for s in spans})


SLOW, FAST = LinkClass(1e-5, 2e9, 2e9, 1e9), LinkClass(1e-6, 2e10, 2e10, 1e10)


def test_the_bound_is_the_largest_of_what_cannot_be_less():
    inside, both, pair = {INSIDE: FAST}, {INSIDE: FAST, BETWEEN: SLOW}, {BETWEEN: LinkClass(1e-5, 2e9, 1.5e9, 1e9)}
    for links, gamma, streams, ranks, nodes, nbytes, seconds in (
        (inside, 1e-12, 1, 4, 1, 8, 2e-6),  # two messages follow one another
        (inside, 1e-12, 1, 4, 1, 10**9, 0.15),  # 1.5 GB over 10 GB/s
        (inside, 1e-9, 4, 4, 1, 10**9, 0.75),  # additions
        ({}, 1e-9, 1, 1, 1, 10**9, 0),
        (both, 1e-12, 2, 4, 2, 10**9, 0.5),  # 1 GB over 2 x 1 GB/s
        (both, 1e-12, 8, 16, 2, 10**9, 1.875 / 10),  # 8 GB/s a node: what each rank moves inside bounds
        (pair, 1e-12, 1, 2, 2, 10**9, 0.5),  # 2 GB/s, which one pair was seen to reach
    ):
        assert bound_s(Calibration(links, gamma, streams), ranks, nodes, nbytes) == pytest.approx(seconds)


def test_what_the_header_says_of_cores_environment_and_caches(tmp_path):
    two = {"host": "a", "cores": [0, 1]}
    assert why_cores_are_shared([two, two, {"host": "b", "cores": [0]}]) is None
    assert why_cores_are_shared([two, two, two]) == "3 ranks on 2 cores"
    assert why_cores_are_shared([{"host": "a", "cores": [0]}, {"host": "a", "cores": [0]}]) == "2 ranks on 1 core"
    environment = {"OMPI_MCA_btl": "tcp", "OMPI_MCA_initial_wdir": "/x", "HOME": "/y", "OMP_NUM_THREADS": "1"}
    assert relevant(environment) == {"OMPI_MCA_btl": "tcp", "OMP_NUM_THREADS": "1"}
    assert scrub_bytes(tmp_path) == UNKNOWN_BYTES
    for level, size in enumerate(("48K", "2048K", "32M")):
        (tmp_path / f"index{level}").mkdir()
        (tmp_path / f"index{level}" / "size").write_text(size + "\n")
    assert scrub_bytes(tmp_path) == 64 << 20
    assert ranges([8, 0, 1, 2, 5]) == "0-2,5,8" and ranges([]) == ""
    assert [format_bytes(n) for n in (3, 65536, 1.5 * 2**20, 2**31)] == ["3 B", "64 KiB", "1.5 MiB", "2 GiB"]
    assert (format_seconds(1.234e-5), format_rate(2.5e9), format_percent(0.125)) == ("12.3 µs", "2.5 GB/s", "12.5 %")
    assert (format_seconds(0.0123), format_rate(1.195e8)) == ("12.3 ms", "119.5 MB/s")
    assert (plural(1, "node"), plural(0, "node")) == ("1 node", "0 nodes")


def test_buffers_that_do_not_fit_are_refused_with_the_figures(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  99 kB\nMemAvailable:     1024 kB\nSwapFree: 0 kB\n")
    assert available_bytes(meminfo) == 1 << 20
    assert available_bytes(tmp_path / "none") is None
    LoopbackWorld(3).run(lambda transport: check_memory(transport, (1 << 20) // 3, meminfo))
    wanted = says("512 KiB", "3 ranks", "1.5 MiB", socket.gethostname(), "1 MiB")
    with pytest.raises(UsageError, match=wanted) as raised:
        LoopbackWorld(3).run(lambda transport: check_memory(transport, 1 << 19, meminfo))
    assert raised.value.everywhere
    LoopbackWorld(2).run(lambda transport: check_memory(transport, 1 << 60, tmp_path / "none"))
