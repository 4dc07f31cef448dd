"""Several launches of one sweep, merged, and as a table.

One launch is no measurement: the cores of the ranks may share a cache in one launch and not in the next, which changes
every time of that launch, up to several times. So a merged row has the least, the median and the greatest of the
launches' own figures, each of which is a median of interleaved iterations.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from statistics import median

from page import table

from ringtrain.allreduce.catalogue import NATIVE
from ringtrain.bench.header import before_a_call
from ringtrain.bench.measure.rows import KEY, NOISY_CV, REFUSED, WRONG, asked_name, label, rates, summarise
from ringtrain.humanize import format_bytes, plural

DOUBT = "†"


def merged(sweeps: Sequence[dict]) -> dict:
    """Return sweeps with the same settings (:func:`ringtrain.bench.sweep.files.read_json`) as one: {"header", "rows"},
    and in each row ``launches``, the figures of every launch. ``speedup`` is the median of the launches',
    ``speedup_low`` and ``speedup_high`` are the least and the greatest; percentiles are of all samples.
    """
    first = sweeps[0]["header"]
    header = {**first, "fits": [], "finished": all(sweep["header"]["finished"] for sweep in sweeps)}
    header["launches"] = [{name: sweep["header"][name] for name in ("at", "load")} for sweep in sweeps]
    by_key: dict[tuple, list[dict]] = {}
    for row in chain.from_iterable(sweep["rows"] for sweep in sweeps):
        by_key.setdefault(tuple({**row, "algorithm": asked_name(row)}[name] for name in KEY), []).append(row)
    return {"header": header, "rows": [_merged(several) for several in by_key.values()]}


def _merged(several: list[dict]) -> dict:
    """Return one row of several. A wrong row is never hidden by another; a refused one is hidden by a measured one."""
    wrong = next((row for row in several if row["status"] == WRONG), None)
    good = [row for row in several if row["status"] != REFUSED]
    if wrong is not None or not good:
        return {**(wrong or several[0]), "launches": None}
    names = {row["algorithm"] for row in good}
    samples = [sample for row in good for sample in row["samples_s"]]
    row = {**good[0], **summarise(samples), "repeats": len(samples), "samples_s": samples}
    for name in ("median_s", "bound_s", "skew_s"):
        row[name] = median(each[name] for each in good)
    row |= rates(row, row["median_s"], row["bound_s"])
    row |= {"algorithm": names.pop() if len(names) == 1 else asked_name(row), "memory": _memories(good)}
    row |= {"reason": None, "unreliable": _doubts(good)}
    row["launches"] = {name: [each[name] for each in good] for name in ("median_s", "speedup", "memory", "cv")}
    speedups = [each["speedup"] for each in good]
    if None not in speedups:
        row |= {"speedup": median(speedups), "speedup_low": min(speedups), "speedup_high": max(speedups)}
    return row


def _memories(good: Sequence[dict]) -> str:
    """Return "ordinary", or "ordinary x 3, shared x 2" if launches differ."""
    counts = Counter(row["memory"] for row in good).most_common()
    return counts[0][0] if len(counts) == 1 else ", ".join(f"{memory} x {count}" for memory, count in counts)


def _doubts(good: Sequence[dict]) -> list[str]:
    """Return the reasons of doubt: noise if most launches were noisy; any other if one launch has it."""
    noisy = sum(row["cv"] > NOISY_CV for row in good)
    doubts = list(dict.fromkeys(why for row in good for why in row["unreliable"] if not why.startswith("cv ")))
    if 2 * noisy > len(good):
        doubts.append(f"cv above {NOISY_CV:.0%} in {noisy} of {plural(len(good), 'launch', 'launches')}")
    return doubts


def markdown(header: dict, rows: Sequence[dict]) -> str:
    """Return merged rows of one type, operation and placement as a table: an algorithm a line, a size a column."""
    sizes = sorted({row["bytes"] for row in rows})
    lines: dict[str, dict[int, dict]] = {}
    for row in rows:
        lines.setdefault(label({**row, "algorithm": asked_name(row)}), {})[row["bytes"]] = row
    cells = [
        [f"{name}, µs" if name == NATIVE else name, *(_cell(row_by_size.get(nbytes)) for nbytes in sizes)]
        for name, row_by_size in lines.items()
    ]
    return "\n".join([*_facts(header, rows), "", *table(["", *map(format_bytes, sizes)], cells)])


def _facts(header: dict, rows: Sequence[dict]) -> list[str]:
    launches, protocol = header["launches"], header["protocol"]
    loads = [launch["load"] for launch in launches]
    hosts = ", ".join(f"{host} x {ranks}" for host, ranks in header["hosts"].items())
    ranks, nodes = plural(header["ranks"], "rank"), plural(header["nodes"], "node")
    machine = f"{ranks} on {nodes} ({hosts}); {header['cpu']}; {header['library']}"
    lines = [
        f"{machine}; {header['at']}, load {min(loads):.1f} to {max(loads):.1f}.",
        f"{plural(len(launches), 'launch', 'launches')} of {protocol['repeats']} iterations; before each, "
        f"{before_a_call(protocol)}.",
        f"Times as fast as `{NATIVE}`, whose own times are in µs: least, **median**, greatest of the launches.",
    ]
    doubts = dict.fromkeys(why for row in rows for why in row["unreliable"] or [])
    return lines + ([f"{DOUBT}: unreliable: {'; '.join(doubts)}."] if doubts else [])


def _cell(row: dict | None) -> str:
    if row is None:
        return "-"
    if row["launches"] is None:
        return row["status"]
    mark = DOUBT if row["unreliable"] else ""
    if row["speedup"] is None:
        return f"{_spread([1e6 * time for time in row['launches']['median_s']])}{mark} {row['memory']}"
    return _spread(row["launches"]["speedup"]) + mark


def _spread(figures: Sequence[float]) -> str:
    values = (min(figures), median(figures), max(figures))
    least, middle, greatest = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values)
    return f"{least}, **{middle}**, {greatest}"
