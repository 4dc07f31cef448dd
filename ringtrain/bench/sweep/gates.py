"""Thresholds of a sweep, for scripts that use the exit status."""

from dataclasses import asdict

from ringtrain.bench.header import before_a_call
from ringtrain.bench.measure.rows import KEY, OK, asked_name, label, ratio
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep.files import read_json
from ringtrain.errors import UsageError


def regressions(old: list[dict], new: list[dict], most: float, seed: int = 0) -> list[str]:
    """Return the regressions in words: rows more than ``most`` (a fraction) slower than the same row of an earlier
    sweep, with a confidence interval that excludes equality; and rows that were good and are not any more.

    Raises UsageError if the two have no row in common: a comparison of nothing must not pass.
    """
    before = {_key(row): row for row in old if row.get("status") == OK}
    common = [(before[_key(row)], row) for row in new if _key(row) in before]
    if not common:
        raise UsageError(
            f"nothing to compare: no row of the earlier sweep ({len(before)} rows) matches a row of this one "
            f"({len(new)}). Compare sweeps with the same algorithms, sizes, types, wires, operations, placements, "
            "ranks and nodes"
        )
    texts = []
    for before_row, row in common:
        if row["status"] != OK:
            texts.append(f"{_name(row)}: was ok, is {row['status']}: {row['reason']}")
            continue
        value, low, high = ratio(row["samples_s"], before_row["samples_s"], False, seed)
        if value > 1 + most and low > 1:
            interval = f"[{low:.2f},{high:.2f}], allowed {1 + most:.2f}"
            texts.append(f"{_name(row)}: {value:.2f} times the earlier time {interval}")
    return texts


def earlier(path, protocol: Protocol) -> dict:
    """Return the sweep in ``path`` to compare with one by ``protocol``. Raises UsageError if it was measured in another
    way: with caches that were emptied or not, or beside other busy processes."""
    old = read_json(path)
    before = old["header"].get("protocol")
    then, now = before_a_call(before if isinstance(before, dict) else {}), before_a_call(asdict(protocol))
    if then != now:
        raise UsageError(
            f"{path} was measured in another way. Before each of its iterations {then}; in this sweep {now}. Give the "
            "same --cold, or measure the earlier one again"
        )
    return old


def _key(row: dict) -> tuple:
    return tuple({**row, "algorithm": asked_name(row)}[name] for name in KEY)


def _name(row: dict) -> str:
    return f"{label(row)} {row['bytes']:,} B {row['dtype']} {row['op']} {row['placement']} place"


def too_slow(rows: list[dict], least_bytes_per_s: float) -> list[str]:
    """Return the algorithms that reach the wanted busbw at no size, in words. One that ran nowhere reaches none."""
    best: dict[str, float] = {}
    for row in rows:
        busbw = row["busbw_bytes_per_s"] if row["status"] == OK else 0.0
        best[asked_name(row)] = max(busbw, best.get(asked_name(row), 0.0))
    return [
        f"{name}: busbw of at most {rate / 1e9:.3g} GB/s, wanted {least_bytes_per_s / 1e9:.3g}"
        for name, rate in best.items()
        if rate < least_bytes_per_s
    ]


def wrong(rows: list[dict]) -> list[str]:
    return [f"{_name(row)}: {row['reason']}" for row in rows if row["wrong"]]
