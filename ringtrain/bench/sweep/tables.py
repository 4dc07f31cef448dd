"""Text of a sweep: header, one line a row, and the fits."""

from collections.abc import Iterable

from ringtrain.allreduce.catalogue import NATIVE
from ringtrain.allreduce.wire_formats import NONE
from ringtrain.bench import texts
from ringtrain.bench.header import before_a_call
from ringtrain.bench.measure.rows import REFUSED
from ringtrain.bench.sweep.pairs import sick, worst_pairs
from ringtrain.humanize import format_bytes, format_percent, format_rate, format_seconds, plural
from ringtrain.tables import fixed_line, text_lines

# Title, width, and text of a row; the first seven columns are those of nccl-tests, with times in µs.
COLUMNS = (
    ("size", 10, lambda row: str(row["bytes"])),
    ("count", 9, lambda row: str(row["count"])),
    ("type", 8, lambda row: row["dtype"]),
    ("redop", 5, lambda row: row["op"]),
    ("place", 5, lambda row: row["placement"]),
    ("on wire", 8, lambda row: row["wire_dtype"]),
    ("algorithm", 13, lambda row: row["algorithm"]),
    ("over", 8, lambda row: _or_dash(row["transport"], str)),
    ("memory", 8, lambda row: row["memory"]),
    ("time", 9, lambda row: f"{1e6 * row['median_s']:.1f}"),
    ("algbw", 7, lambda row: f"{row['algbw_bytes_per_s'] / 1e9:.2f}"),
    ("busbw", 7, lambda row: f"{row['busbw_bytes_per_s'] / 1e9:.2f}"),
    ("%bound", 6, lambda row: f"{100 * row['bound_share']:.0f}"),
    ("wire", 10, lambda row: _or_dash(row["wire_bytes"], str)),
    ("x mpi", 18, lambda row: _speedup(row)),
    ("p95", 9, lambda row: f"{1e6 * row['p95_s']:.1f}"),
    ("cv%", 4, lambda row: f"{100 * row['cv']:.0f}"),
    ("skew", 8, lambda row: f"{1e6 * row['skew_s']:.1f}"),
    ("late", 5, lambda row: _or_dash(row["late_cost"], lambda cost: f"{cost:.2f}")),
    ("#wrong", 6, lambda row: _or_dash(row["wrong"], str)),
    ("same", 4, lambda row: _same(row)),
)
UNITS = {"size": "B", "count": "elements", "time": "us", "algbw": "GB/s", "busbw": "GB/s", "wire": "B/rank"}
UNITS |= {"x mpi": "[95 % interval]", "p95": "us", "skew": "us", "late": "delay"}
LAST_NAMED = "over"  # a refused row has the columns up to this one


def _or_dash(value, show) -> str:
    return "-" if value is None else show(value)


def _speedup(row: dict) -> str:
    if row["speedup"] is None:
        return "-"
    return f"{row['speedup']:.2f} [{row['speedup_low']:.2f},{row['speedup_high']:.2f}]"


def _same(row: dict) -> str:
    """Return k: on all ranks, r: over repeats, s: over segments; a dot if not."""
    marks = (("k", "same_on_ranks"), ("r", "same_over_repeats"), ("s", "same_over_segments"))
    return "".join("-" if row[name] is None else mark if row[name] else "." for mark, name in marks)


def table_columns(header: dict) -> tuple:
    """Return all columns except those that were not asked for."""
    protocol = header["protocol"]
    asked = {"late": protocol["late_rank"] is not None, "on wire": protocol["wires"] != [NONE]}
    return tuple(column for column in COLUMNS if asked.get(column[0], True))


def titles(columns=COLUMNS) -> list[str]:
    """Return the two lines of titles."""
    names = fixed_line((title, width) for title, width, _ in columns)
    units = fixed_line((UNITS.get(title, ""), width) for title, width, _ in columns)
    return [f"# {names}", f"# {units}"]


def row_line(row: dict, columns=COLUMNS) -> str:
    """Return a row's line; reasons of doubt are at its end, and the reason of a refusal replaces the figures."""
    if row["status"] == REFUSED:
        named = 1 + [title for title, _, _ in columns].index(LAST_NAMED)
        return f"  {_cells(row, columns[:named])} refused: {row['reason']}"
    doubts = "; ".join(row["unreliable"])
    return f"  {_cells(row, columns)}" + (f"  unreliable: {doubts}" if doubts else "")


def _cells(row: dict, columns) -> str:
    return fixed_line((show(row), width) for _, width, show in columns)


def header_lines(header: dict) -> list[str]:
    """Return the header of a sweep as lines."""
    hosts = ", ".join(f"{host} x {ranks}" for host, ranks in header["hosts"].items())
    protocol = header["protocol"]
    lines = [
        texts.HEADER(version=header["ringtrain"], at=header["at"], load=header["load"]),
        texts.TRANSPORT(library=header["library"], transport=header["transport"], why=header["transport_why"]),
        texts.RANKS(
            ranks=plural(header["ranks"], "rank"),
            nodes=plural(header["nodes"], "node"),
            hosts=hosts,
            cpu=header["cpu"],
            machine=header["machine"],
        ),
        texts.CORES(cores=" | ".join(header["binding"]), crowded=_crowd(header["crowded"])),
        texts.PROTOCOL(
            repeats=protocol["repeats"], warm_up=protocol["warm_up"], seed=protocol["seed"], start=header["start"]
        ),
        texts.BEFORE(before=before_a_call(protocol)),
        *(f"{name}={value}" for name, value in header["environment"].items()),
        *_device(header["device"]),
        *_links(header),
        *_pairs(header["pairs"], header["host_by_rank"]),
    ]
    if protocol["late_rank"] is not None:
        lines.append(texts.LATE(rank=protocol["late_rank"], time=format_seconds(protocol["late_s"])))
    return [f"# {text}" for text in lines]


def _crowd(crowded: str | None) -> str:
    return texts.CROWDED(crowded=crowded) if crowded else ""


def _device(device: dict | None) -> list[str]:
    if device is None:
        return []
    count = plural(device["devices"], "device")
    apart = texts.NOT_MAPPED(why=device["apart"]) if device["apart"] else ""
    return [texts.DEVICES(devices=count, name=device["name"], ways=" and ".join(device["ways"]), not_mapped=apart)]


def _links(header: dict) -> list[str]:
    if header["device"] is None:
        return _calibration(header["calibration"])
    copies, ways = header["copies"], header["calibration_by_way"]
    peer = copies["peer_bytes_per_s"]
    from_peer = "" if peer is None else texts.PEER_COPIES(rate=format_rate(peer))
    lines = [f"{way} {row_line}" for way, calibration in ways.items() for row_line in _calibration(calibration)]
    return [
        *lines,
        texts.COPIES(rate=format_rate(copies["own_bytes_per_s"]), peer=from_peer),
    ]


def _calibration(calibration: dict) -> list[str]:
    lines = [
        texts.LINKS(
            kind=kind,
            alpha=format_seconds(link["alpha_s"]),
            pair=format_rate(link["pair_bytes_per_s"]),
            both=format_rate(link["both_bytes_per_s"]),
            busy=format_rate(link["busy_bytes_per_s"]),
        )
        for kind, link in calibration["links"].items()
    ]
    return [*lines, texts.ADDING(rate=format_rate(1 / calibration["gamma_s_per_byte"]))]


def _pairs(rows: list[dict] | None, hosts: list[str]) -> list[str]:
    if not rows:
        return []
    pairs = ((row["first"], row["second"], row["latency_s"], row["bytes_per_s"]) for row in rows)
    cells = (("pair", f"{a}", f"{b}:", format_seconds(latency), format_rate(rate)) for a, b, latency, rate in pairs)
    found = worst_pairs(rows)
    slow, thin = ((found[kind]["first"], found[kind]["second"]) for kind in ("latency", "bandwidth"))
    return [
        *text_lines(cells, "lrrrr"),
        texts.WORST_PAIRS(first=slow[0], second=slow[1], third=thin[0], fourth=thin[1]),
        *(sick(rows, hosts) or [texts.NONE_STANDS_OUT]),
    ]


def fit_lines(fits: Iterable[dict]) -> list[str]:
    """Return the models, and their crossings with the MPI's; all other crossings are in the JSON file."""
    lines = []
    for group in fits:
        wire = "" if group["wire_dtype"] == group["dtype"] else texts.OVER_WIRE(wire=group["wire_dtype"])
        what = f"{group['dtype']} {group['op']}{wire}, {group['placement']} place"
        lines += [texts.FIT(what=what)] if group["models"] else []
        lines += [f"#   {_model(name, model)}" for name, model in group["models"].items()]
        beside = [found for found in group["crossovers"] if NATIVE in found["algorithms"]]
        lines += [f"#   {_crossover(found)}" for found in beside or group["crossovers"]]
    return lines


def _model(name: str, model: dict) -> str:
    text = f"{name}: " + ", ".join(_regime(model["work"], regime) for regime in model["regimes"])
    if model["median_error"] is None:
        return texts.NOT_JUDGED(text=text)
    return texts.JUDGED(
        text=text,
        sizes=plural(len(model["held_out"]), "size"),
        median=format_percent(model["median_error"]),
        worst=format_percent(model["worst_error"]),
    )


def _regime(work: dict, regime: dict) -> str:
    fabric, start, slope = regime["fabric"], [], []
    for rounds, sent, alpha, beta in (
        (work["rounds_between"], work["sent_between"], "alpha", "beta"),
        (work["rounds"], work["sent"], "local_alpha", "local_beta"),
    ):
        start += [f"{rounds} x {alpha} {format_seconds(fabric[alpha + '_s'])}"] if rounds else []
        slope += [f"{sent:.3g} x {beta} {1e9 * fabric[beta + '_s']:.3g}"] if rounds else []
    slope += [f"{work['added']:.3g} x gamma {1e9 * fabric['gamma_s']:.3g}"]
    since = texts.FROM_SIZE(size=format_bytes(regime["first_bytes"])) if regime["first_bytes"] else ""
    return f"{since}{' + '.join(start)} + n x ({' + '.join(slope)}) ns"


def _crossover(found: dict) -> str:
    a, b = found["algorithms"]
    predicted = ", ".join(format_bytes(nbytes) for nbytes in found["predicted_bytes"])
    measured = ", ".join(f"{format_bytes(low)} to {format_bytes(high)}" for low, high in found["measured_bytes"])
    return texts.CROSSOVER(first=a, second=b, predicted=predicted or "nowhere", measured=measured or "nowhere")


def verdict_line(rows: list[dict], self_test: list) -> str:
    """Return the verdict on all rows as a line."""
    wrong = [row for row in rows if row["wrong"]]
    judged = sum(row["wrong"] is not None for row in rows)
    refused = sum(row["status"] == REFUSED for row in rows)
    text = texts.CHECKED(rows=judged, wrong=len(wrong), refused=refused)
    return texts.SELF_TESTED(text=text, tests=len(self_test)) if self_test else text
