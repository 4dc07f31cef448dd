"""Few bits, signs, and few elements of few bits, beside simulations in NumPy that add in the same order."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from exchange_support import kit_of
from test_exchange_compression import (
    CONV,
    COUNT,
    FC,
    SPANS,
    add_up,
    check_nothing_is_lost,
    elements,
    normal,
    whole_numbers,
)

from ringtrain.errors import ConfigError
from ringtrain.exchange.catalogue import make_exchange
from ringtrain.exchange.compression.error_feedback import METHODS, ErrorFeedback
from ringtrain.humanize import format_bytes
from ringtrain.ops.cpu import CpuOps
from ringtrain.ops.reference import ReferenceOps
from tests import lossy
from tests.fakes.strategies import settings_of
from tests.loopback.world import LoopbackWorld
from tests.says import says
from tests.tiers import thorough

TOP_K = {"compress": "top-k", "compress_ratio": 0.1}
SPARSELOCO = {**TOP_K, "compress_ratio": 0.03, "compress_bits": 2, "compress_chunk": 64}
SENDS = {  # flags, and what is sent of x
    "8 bits": ({"compress": "quantise"}, partial(lossy.levels, bits=8)),
    "4 bits": ({"compress": "quantise", "compress_bits": 4}, partial(lossy.levels, bits=4)),
    "2 bits": ({"compress": "quantise", "compress_bits": 2}, partial(lossy.levels, bits=2)),
    "sign": ({"compress": "sign"}, partial(lossy.levels, bits=1)),
    "top-k": (TOP_K, partial(lossy.largest, ratio=0.1)),
    "top-k of chunks": ({**TOP_K, "compress_chunk": 128}, partial(lossy.largest, ratio=0.1, chunk=128)),
    "top-k in 4 bits": ({**TOP_K, "compress_bits": 4}, partial(lossy.largest, ratio=0.1, bits=4)),
    "SparseLoCo's": (SPARSELOCO, partial(lossy.largest, ratio=0.03, chunk=64, bits=2)),
}


def bound(t, ops=None, dtype="float64", **flags):
    settings = settings_of(t, ops or ReferenceOps(dtype), deadline_s=20.0, **{"algorithm": "ring", **flags})
    config = settings.config
    summing = ErrorFeedback(METHODS[config.compress](config), config.compress_from, settings)
    buffer = t.allocate(COUNT, dtype)
    summing.rehearse()
    return summing, summing.bind(SPANS, buffer), buffer


def sums(size, iterations=50, gradients=normal, **flags):
    """[rank][iteration] → (sum, residual)"""

    def body(t):
        parts = bound(t, bucket_bytes=2000, **flags)
        return [add_up(*parts, i, gradients(t.rank, i)) for i in range(iterations)]

    return LoopbackWorld(size).run(body)


def simulated(size, send, decay=1.0):
    """[iteration] → the sum of the compressed parameters, by name"""
    state = [{span.name: np.zeros(span.count) for span in (CONV, FC)} for _ in range(size)]
    every = []
    for iteration in range(50):
        totals = {span.name: np.zeros(span.count) for span in (CONV, FC)}
        for span, rank in product((CONV, FC), range(size)):
            kept = decay * state[rank][span.name] + elements(normal(rank, iteration), span)
            sent = send(kept)
            totals[span.name] += sent
            state[rank][span.name] = kept - sent
        every.append(totals)
    return every


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(("name", "decay"), [*((name, 1.0) for name in SENDS), ("sign", 0.5), ("SparseLoCo's", 0.95)])
def test_sums_are_those_of_a_simulation(name, decay, size):
    flags, send = SENDS[name]
    wanted = simulated(size, send, decay)
    for rank in sums(size, **flags, residual_decay=decay):
        for (total, _), want in zip(rank, wanted, strict=True):
            for span in (CONV, FC):
                np.testing.assert_allclose(elements(total, span), want[span.name], rtol=0, atol=1e-12)


POWER = {"compress": "powersgd", "compress_rank": 2}
FLAGS = {name: flags for name, (flags, _) in SENDS.items()} | {"powersgd": POWER}


@pytest.mark.parametrize("name", ["8 bits", "2 bits", "sign", "top-k", "SparseLoCo's", "powersgd"])
def test_nothing_is_lost_and_others_go_whole(name):
    ranks = [
        [(normal(rank, i), *each) for i, each in enumerate(done)] for rank, done in enumerate(sums(4, 5, **FLAGS[name]))
    ]
    check_nothing_is_lost(ranks, 1e-12)
    for span in SPANS:
        if span not in (CONV, FC):
            whole = sum(elements(rank[0][0], span) for rank in ranks)
            np.testing.assert_allclose(elements(ranks[0][0][1], span), whole, rtol=1e-12)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("size", [2, 5, *thorough(3, 4)])
def test_replicas_are_equal_bit_by_bit(name, size):
    """In float32 and by the compiled operations, with all-gathers of another order."""
    flags = {"algorithm": "circulant", "bucket_bytes": 700, **FLAGS[name]}

    def body(t):
        parts = bound(t, CpuOps("float32"), "float32", **flags)
        return [add_up(*parts, i, normal(t.rank, i))[0].tobytes() for i in range(4)]

    assert len({tuple(totals) for totals in LoopbackWorld(size).run(body)}) == 1


@pytest.mark.parametrize("begin", [0, 2])
@pytest.mark.parametrize("flags", [SPARSELOCO, {"compress": "sign"}])
def test_a_run_goes_on_as_if_unbroken_and_another_number_of_ranks_divides_what_was_kept(flags, begin):
    def body(t, saved=None):
        parts = bound(t, **flags, compress_from=begin, bucket_bytes=2000)
        if saved:
            parts[0].restore(saved[0])
            parts[0].take(saved[1])
        totals = [add_up(*parts, i, normal(t.rank, i))[0] for i in (range(4, 8) if saved else range(4))]
        return totals, (parts[0].state(), {name: array.copy() for name, array in parts[0].arrays().items()})

    begun = LoopbackWorld(3).run(body)
    ends = LoopbackWorld(3).run(lambda t: body(t, (begun[0][1][0], begun[t.rank][1][1])))
    for rank, want in enumerate(sums(3, 8, compress_from=begin, **flags)):
        np.testing.assert_array_equal([*begun[rank][0], *ends[rank][0]], [total for total, _ in want])

    def read(t):
        parts = bound(t, **flags)
        parts[0].restore(begun[0][1][0])
        (array,) = parts[0].arrays().values()
        return array.copy(), parts[0].state()

    shares = LoopbackWorld(2).run(read)
    (name,) = shares[0][1]
    np.testing.assert_array_equal(sum(share for share, _ in shares), begun[0][1][0][name])
    np.testing.assert_array_equal(shares[0][1][name], begun[0][1][0][name])


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def slots(name):
    """The bytes of a rank's slots for 144 and 600 elements of float64."""
    return {
        "8 bits": (144 + 8, 600 + 24),
        "4 bits": (72 + 8, 300 + 24 + 4),
        "2 bits": (36 + 16 + 4, 150 + 48 + 2),
        "sign": (18 + 8 + 6, 75 + 24 + 5),
        "top-k": (15 * 12 + 4, 60 * 12),
        "top-k of chunks": (8 * (13 + 2) + 14 + 2, 8 * (4 * 13 + 9) + 54 + 2),
        "top-k in 4 bits": (8 + 8 + 15 + 1, 8 + 30 + 2 + 75 + 5),
        "SparseLoCo's": (16 + 2 + 6 + 4 + 4, 16 + 5 + 3 + 15 + 1),
    }[name]


@pytest.mark.parametrize("name", FLAGS)
def test_bytes_are_those_of_the_formula_and_the_header_tells_them(name):
    """Of a ring of 4, with parts that 4 divides; PowerSGD's are factors of 2·(18 + 8) and 2·(30 + 20)."""
    rest = 2 * 3 * 8 * (16 + 16 + 16 + 32) // 4
    wanted = rest + (2 * 3 * 8 * (52 + 100) // 4 if name == "powersgd" else 3 * sum(slots(name)))

    def body(t):
        summing, flight, buffer = bound(t, bucket_bytes=1 << 20, **FLAGS[name])
        add_up(summing, flight, buffer, 0, whole_numbers(t.rank, 0))
        return flight.bytes_sent, summing.notes

    for sent, notes in LoopbackWorld(4).run(body):
        assert sent == wanted
        assert notes == [says(format_bytes(sent), f"{100 * sent / 9984:.3g} %", "9.75 KiB")]


@pytest.mark.parametrize(("ratio", "share"), [(0.01, 0.0089), (0.03, 0.0268)])
def test_sparselocos_bytes_are_at_most_3_percent_of_dilocos(ratio, share):
    """At 4 ranks, of a parameter of 4096 · 1000 elements of float32."""
    method = METHODS["top-k"](
        settings_of(None, None, compress_ratio=ratio, compress_bits=2, compress_chunk=4096).config
    )
    count = 4096 * 1000
    ours, dilocos = 3 * method.nbytes(count, 4), 2 * 3 / 4 * 4 * count
    assert ours / dilocos == pytest.approx(share, rel=0.01) and ours <= 0.03 * dilocos


@pytest.mark.parametrize(("bits", "ranks"), [(8, 8), (4, 16), (2, 29), (1, 57)])
def test_from_this_number_of_ranks_on_whole_gradients_are_fewer_bytes(bits, ranks):
    nbytes = METHODS["quantise"](settings_of(None, None, compress_bits=bits).config).nbytes(1 << 20, 4)
    assert (ranks - 2) * nbytes < 2 * (ranks - 2) / (ranks - 1) * (4 << 20)
    assert (ranks - 1) * nbytes > 2 * (ranks - 1) / ranks * (4 << 20)


def test_chunks_are_powers_of_2():
    with pytest.raises(ConfigError, match=says("--compress-chunk 1000", "1024", "512")):
        make_exchange(kit_of(**{**TOP_K, "compress_chunk": 1000}))
