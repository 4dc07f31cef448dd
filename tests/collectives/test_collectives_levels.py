"""Levels of a node: found in the kernel's files, proved, counted, and at work among threads."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from mutants import with_phase

from ringtrain.allreduce.catalogue import check_algorithm, make_allreduce
from ringtrain.collectives import levels
from ringtrain.collectives.execution.node_program import (
    ChunkOperation,
    NodeProgram,
    exchanged,
    levels_program,
)
from ringtrain.collectives.levels import Levels, in_order, levels_of_domains, node_levels, parse_shape, read_domains
from ringtrain.collectives.proof.shared_memory_proof import verify_node_program
from ringtrain.collectives.shared_memory import node_program
from ringtrain.collectives.stream import make_streamed, prepare_streamed
from ringtrain.errors import MismatchError, ScheduleError, UsageError
from tests.collectives.executions import stalled
from tests.loopback.world import LoopbackWorld
from tests.says import says

SHAPES = [(2, 2), (4, 2), (2, 4), (3, 2), (2, 3), (2, 2, 2), (4, 4), (8, 4), (16, 2), (4, 4, 2)]


def name_of(shape):
    return "x".join(map(str, shape))


# ── which ranks are near ──────────────────────────────────────────────────────────────────────────────────────────────
def machine(folder, caches, sockets):
    """The kernel's files of processors with these last caches, by number, and sockets."""
    for cpu, (cache, socket) in enumerate(zip(caches, sockets, strict=True)):
        for index, shared in (("index0", f"{cpu}"), ("index3", cache), ("index10", None)):
            if shared is not None:
                (folder / f"cpu{cpu}/cache/{index}").mkdir(parents=True)
                (folder / f"cpu{cpu}/cache/{index}/shared_cpu_list").write_text(f"{shared}\n")
        (folder / f"cpu{cpu}/topology").mkdir()
        (folder / f"cpu{cpu}/topology/physical_package_id").write_text(f"{socket}\n")
    return folder


def test_the_last_cache_and_the_socket_of_a_rank_are_those_of_all_its_processors(tmp_path):
    folder = machine(tmp_path, ["0-1", "0-1", "2-3", "2-3"], [0, 0, 0, 1])
    assert read_domains({0}, folder) == ("0-1", "0")
    assert read_domains({0, 1}, folder) == ("0-1", "0")
    assert read_domains({1, 2}, folder) == (None, "0")
    assert read_domains({0, 1, 2, 3}, folder) == (None, None)
    assert read_domains({7}, folder) == (None, None)


A, B, C, D = "0-3", "4-7", "8-11", "12-15"


@pytest.mark.parametrize(
    ("domains", "shape", "ranks"),
    [
        ([(A, "0")] * 4, (4,), [0, 1, 2, 3]),  # one cache
        ([(A, "0"), (A, "0"), (B, "0"), (B, "0")], (2, 2), [0, 1, 2, 3]),
        ([(A, "0"), (B, "0"), (A, "0"), (B, "0")], (2, 2), [0, 2, 1, 3]),  # dealt out in turn
        ([(each, str(n // 2)) for n, each in enumerate((A, B, C, D))], (2, 2), [0, 1, 2, 3]),  # one rank a cache
        ([(each, str(each in (C, D))) for each in (A, B, C, D) * 2], (2, 2, 2), [0, 4, 1, 5, 2, 6, 3, 7]),
        ([(None, "0"), (None, "0"), (None, "1"), (None, "1")], (2, 2), [0, 1, 2, 3]),  # bound to sockets
        ([(A, "0"), (A, "0"), (B, "1")], (3,), [0, 1, 2]),  # uneven
        ([(A, "0"), (A, "0"), (A, "0"), (B, "0"), (C, "1"), (C, "1"), (D, "1"), (D, "1")], (4, 2), list(range(8))),
        ([(A, "0"), (None, None)], (2,), [0, 1]),
        ([(A, "0")], (1,), [0]),
    ],
)
def test_levels_are_domains_of_equal_numbers_of_ranks(domains, shape, ranks):
    assert levels_of_domains(domains) == Levels(shape, tuple(ranks))


def test_ranks_agree_on_the_levels_of_their_node():
    def body(t):
        return node_levels(t), node_levels(t)

    assert LoopbackWorld(2).run(body) == [(in_order((2,)),) * 2] * 2


@pytest.mark.parametrize("text", ["8x", "x4", "1x4", "8x4x2x2", "8xa", "0x2"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(UsageError, match=says(f"mapped:{text}", "mapped:8x4", 3)):
        parse_shape(f"mapped:{text}")
    assert parse_shape("mapped:8x4") == (8, 4) and parse_shape("stream:8x4x2") == (8, 4, 2)


def test_names_have_shapes():
    for name in ("mapped:2x2", "mapped:flat", "stream:2x2", "stream:flat"):
        check_algorithm(name)
    for name in ("mapped:ring", "stream:ring", "routed:2x2", "mapped:2x", "stream:2x"):
        with pytest.raises(UsageError):
            check_algorithm(name)


# ── the proof, and the counts ─────────────────────────────────────────────────────────────────────────────────────────
def crossing(program, group):
    """The bytes that move between domains of so many ranks, in arrays."""
    moved = ((rank, other, width) for rank in range(program.size) for (other, _), width in exchanged(program, rank))
    return sum(width for rank, other, width in moved if rank // group != other // group) / program.chunks


def binary_tree(group, domains):
    """Arrays that cross, and waits one after another, of a binomial tree over domains, each of which reduces and
    broadcasts in one wait."""
    return 2 * (domains - 1), 2 * math.ceil(math.log2(domains)) + 2 * (group > 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_levels_are_proved_and_move_no_more_between_domains_than_a_tree(shape):
    program = levels_program(shape)
    verify_node_program(program)
    for level in range(1, len(shape)):
        group = math.prod(shape[:level])
        arrays, waits = binary_tree(group, program.size // group)
        assert crossing(program, group) == arrays
        assert len(shape) > 2 or len(program.phases) <= waits
        assert crossing(node_program(program.size), group) == 2 * (program.size - group)
    for rank in range(program.size):
        awaited = [len(phase.awaited[rank]) - 1 for phase in program.phases]
        assert sum(awaited) == 2 * sum(several - 1 for several in shape) < 2 * (program.size - 1)


def mutants(program: NodeProgram) -> Iterator[NodeProgram]:
    """Each program that lacks a wait for a rank, or an operation, or has one on another chunk or from another rank."""
    for number, phase in enumerate(program.phases):
        for rank in range(program.size):
            for other in set(phase.awaited[rank]) - {rank}:
                fewer = tuple(each for each in phase.awaited[rank] if each != other)
                yield with_phase(program, number, rank, awaited=fewer)
            tasks = phase.tasks[rank]
            for i, (target, source, add) in enumerate(tasks):
                elsewhere = source[0], (source[1] + phase.width) % program.chunks
                another = (source[0] + 1) % program.size, source[1]
                for place in (elsewhere, None, another)[: 2 + add]:  # it may copy what it has copied there
                    instead = () if place is None else (ChunkOperation(target, place, add),)
                    yield with_phase(program, number, rank, tasks=(*tasks[:i], *instead, *tasks[i + 1 :]))


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 2, 2)])
def test_levels_that_are_wrong_are_refused(shape):
    count = 0
    for mutant in mutants(levels_program(shape)):
        count += 1
        with pytest.raises(ScheduleError):
            verify_node_program(mutant)
    assert count > 40


# ── at work ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def numbers_of(rank, count, dtype="f4"):
    return np.random.default_rng([rank, count]).integers(-9, 9, count).astype(dtype)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 2, 2)])
def test_all_sums_are_right_among_other_calls(monkeypatch, shape):
    """Exact numbers, of one chunk and of many, by levels and without them in turn, and in the order of any places."""
    size = math.prod(shape)
    shuffled = Levels(shape, (*range(size - 1, 0, -2), *range(size - 2, -1, -2)))
    assert sorted(shuffled.ranks) == list(range(size)) != list(shuffled.ranks)
    monkeypatch.setattr("ringtrain.collectives.execution.streamed.SLOT_BYTES", 2048)
    names = ["", f":{name_of(shape)}", ":flat", f":{name_of(shape)}"]
    counts = (0, 1, 7, 1009, 20_011)
    wanted = {count: sum(numbers_of(rank, count) for rank in range(size)) for count in counts}

    def body(t):
        levels._LEVELS[t] = shuffled
        for count, name, op in ((count, name, op) for count in counts for name in names for op in ("sum", "mean")):
            array, total = numbers_of(t.rank, count), np.zeros(count, "f4")
            run = make_streamed(t, f"stream{name}", op, "float32", count, 4)
            run.bind(array, total)
            run.run(20.0)
            assert total.tolist() == (wanted[count] / (np.float32(size) if op == "mean" else 1)).tolist()
            assert array.tolist() == numbers_of(t.rank, count).tolist()
            shared = t.allocate(4 * count, np.uint8).view("f4")
            shared[:] = array
            if op == "sum":
                make_allreduce(t, shared, f"mapped{name}", np.add).run(20.0)
                assert shared.tolist() == wanted[count].tolist()

    LoopbackWorld(size).run(body)


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_all_ranks_have_the_same_bits_by_levels(op, dtype):
    if op == "mean" and dtype == "int32":
        return

    def body(t):
        array = np.random.default_rng(t.rank).standard_normal(70_001).astype(dtype)
        run = make_streamed(t, "stream:2x3", op, dtype, array.size, array.itemsize)
        run.bind(array, array)
        run.run(20.0)
        return array.astype("f8")

    first, *others = LoopbackWorld(6).run(body)
    assert all(other.tobytes() == first.tobytes() for other in others)
    shares = [np.random.default_rng(rank).standard_normal(70_001).astype(dtype).astype("f8") for rank in range(6)]
    total = {"sum": np.sum, "mean": np.mean, "max": np.max}[op](shares, axis=0)
    assert np.abs(first - total).max() <= {"float16": 0.05, "float64": 1e-14, "int32": 0}[dtype]


def test_a_node_of_another_size_is_refused():
    def body(t):
        for name, words in (("stream:2x2", (4, 3)), ("mapped:2x2", (4, 3))):
            with pytest.raises(UsageError, match=says("2x2", *words, "ranks", "node")):
                make_allreduce(t, t.allocate(64, np.uint8).view("f4"), name, np.add)

    LoopbackWorld(3).run(body)


@pytest.mark.parametrize("others", [(3,), (2, 3)])
def test_different_calls_are_named_within_a_domain_and_between_them(others):
    """Also by a rank that has no group in common with the one that differs."""

    def body(t):
        run = prepare_streamed(t, np.ones(10 + (t.rank in others), "f4"), "stream:2x2", "sum", "float32")
        with pytest.raises(MismatchError, match=says(f"rank {t.rank}", "10 float32", "11 float32")):
            run.run(20.0)

    LoopbackWorld(4).run(body)


@pytest.mark.parametrize("other", ["stream:flat", "stream:4x2"])
def test_different_levels_are_different_calls(other):
    def body(t):
        name = other if t.rank == 5 else "stream:2x4"
        with pytest.raises(MismatchError, match=says("different", "2x4")):
            prepare_streamed(t, np.ones(100_000, "f4"), name, "sum", "float32").run(20.0)

    LoopbackWorld(8).run(body)


def test_short_arrays_are_added_at_one_level_unless_a_name_says_otherwise(monkeypatch):
    def body(t):
        levels._LEVELS[t] = in_order((2, 2))
        calls = [make_streamed(t, name, "sum", "float32", count, 4) for name, count in cases]
        return [call._call._stages for call in calls]

    cases = [("stream", 100), ("stream", 100_000), ("stream:2x2", 100), ("stream:flat", 100), ("stream:flat", 100_000)]
    assert LoopbackWorld(4).run(body) == [[2, 5, 5, 2, 3]] * 4


@pytest.mark.parametrize("value", [6e-8, 60_000.0])
def test_a_mean_of_small_and_of_large_numbers_is_exact_by_levels(value):
    def body(t):
        array = np.full(1000, value, "f2")
        run = make_streamed(t, "stream:4x2", "mean", "float16", array.size, 2)
        run.bind(array, array)
        run.run(20.0)
        return set(array.tolist())

    assert LoopbackWorld(8).run(body) == [{float(np.float16(value))}] * 8


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["mapped", "stream"])
def test_a_late_rank_of_another_domain_is_named(kind):
    def body(t):
        buffer = t.allocate(8 * 1000, np.uint8).view("f8")
        return stalled(t, make_allreduce(t, buffer, f"{kind}:2x2", np.add), says("again"), absent=3)

    *others, _ = LoopbackWorld(4).run(body)
    assert all("rank 3" in error for error in others)
