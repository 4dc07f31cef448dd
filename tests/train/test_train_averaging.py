"""What is averaging's own: optimizers of each rank, and a first part of all-reduce."""

from small_runs import DROPOUT_NET, ITERATIONS, LAYERWISE, apart, results


def averaging(size, iterations=ITERATIONS, **flags):
    return results(size, DROPOUT_NET, iterations, dtype="float64", sync="averaging", **flags)


def serial(iterations=ITERATIONS, **flags):
    return results(1, DROPOUT_NET, iterations, dtype="float64", **flags)[0][1]


def test_layerwise_optimizers_are_each_ranks_own():
    """Serial on one rank, and on several one state for all."""
    flags = {"average_every": 3, **LAYERWISE["lars"]}
    assert apart(averaging(1, **flags), serial(**LAYERWISE["lars"])) <= 1e-12
    whole = averaging(3, iterations=20, settle_at=(10,), **flags)
    begun = averaging(3, iterations=10, **flags)[0][2]
    found = averaging(3, start=10, found=begun, iterations=20, **flags)
    assert {w.tobytes() for _, w, _ in found} == {w.tobytes() for _, w, _ in whole}
    assert apart(whole, serial(iterations=20, **LAYERWISE["lars"])) > 1e-4


def test_post_local_is_all_reduce_up_to_then():
    flags = {"average_every": 4, "average_from": 12}
    found = averaging(3, **flags)
    assert apart(averaging(3, iterations=12, **flags), serial(iterations=12)) <= 1e-12
    begun = results(2, DROPOUT_NET, 12, dtype="float64")[0][2]
    assert apart(averaging(3, start=12, found=begun, **flags), found[0][1]) <= 1e-12
    assert apart(found, serial()) > 1e-3
