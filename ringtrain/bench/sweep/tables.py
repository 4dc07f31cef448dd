"""Text of a sweep: header, one line a row, and the fits."""

from collections.abc import Iterable, Sequence
from functools import partial

from ringtrain.bench.header import before_a_call
from ringtrain.bench.measure.links import sick, worst_pairs
from ringtrain.bench.measure.rows import NOISY_CV, REFUSED, label
from ringtrain.humanize import format_bytes, format_percent, format_rate, format_seconds, plural
from ringtrain.show.tables import Column, fixed_line, text_lines

_column = partial(Column, none="-")
# As nccl-tests has them, with the way, and the ratio to the MPI's own. Everything else is in the JSON file.
COLUMNS = (
    _column("bytes", "size", "B", width=10),
    _column(None, "algorithm", form=label, width=16),
    _column("transport", "over", width=8),
    _column("median_s", "time", "us", "{:.1f}", scale=1e6, width=9),
    _column("algbw_bytes_per_s", "algbw", "GB/s", lambda rate: f"{rate / 1e9:.2f}", width=6),
    _column("busbw_bytes_per_s", "busbw", "GB/s", lambda rate: f"{rate / 1e9:.2f}", width=6),
    _column("speedup", "x mpi", "[95 % interval]", "{:.2f} [{:.2f},{:.2f}]", spread=("_low", "_high"), width=17),
    _column("wrong", "#wrong", width=6),
)
NAMED: Sequence[Column] = COLUMNS[:2]  # of a refused row, too


def titles() -> list[str]:
    lines = ([(column.title, column.width) for column in COLUMNS], [(column.unit, column.width) for column in COLUMNS])
    return [f"# {fixed_line(line)}" for line in lines]


def row_line(row: dict, crowded: str | None = None) -> str:
    """Return a row's line; reasons of doubt are at its end, and the reason of a refusal replaces the figures.

    crowded: the reason that the header tells, for all rows
    """
    if row["status"] == REFUSED:
        columns, end = NAMED, f" refused: {row['reason']}"
    else:
        doubts = "; ".join(doubt for doubt in row["unreliable"] if doubt != crowded)
        columns, end = COLUMNS, f"  {doubts}" if doubts else ""
    return f"  {fixed_line((column.text(row), column.width) for column in columns)}{end}"


def header_lines(header: dict) -> list[str]:
    hosts = ", ".join(f"{host} x {ranks}" for host, ranks in header["hosts"].items())
    protocol = header["protocol"]
    crowded = f"; {header['crowded']}: times include the scheduler's" if header["crowded"] else ""
    lines = [
        f"ringtrain {header['ringtrain']} bench-allreduce {header['at']}, load {header['load']:.1f}",
        f"{header['library']}; transport {header['transport']} ({header['transport_why']})",
        (
            f"{plural(header['ranks'], 'rank')} on {plural(header['nodes'], 'node')}: {hosts}; {header['cpu']}; "
            f"{header['machine']}"
        ),
        f"cores by rank: {' | '.join(header['binding'])}{crowded}",
        (
            f"{protocol['repeats']} iterations after {protocol['warm_up']}, algorithms interleaved (seed "
            f"{protocol['seed']}), ranks started by a {header['start']}; time: median of the slowest rank's"
        ),
        f"before an iteration, {before_a_call(protocol)}",
        *(f"{name}={value}" for name, value in header["environment"].items()),
        *_links(header),
        *_pairs(header["pairs"], header["host_by_rank"]),
    ]
    return [f"# {text}" for text in lines]


def _links(header: dict) -> list[str]:
    device = header["device"]
    if device is None:
        return _calibration(header["calibration"])
    ways = header["calibration_by_way"]
    apart = f"; not mapped within a node: {device['apart']}" if device["apart"] else ""
    where = f"buffers on {plural(device['devices'], 'device')}, {device['name']}"
    return [
        f"{where}; messages {' and '.join(device['ways'])}{apart}",
        *(f"{way} {link}" for way, calibration in ways.items() for link in _calibration(calibration)),
    ]


def _calibration(calibration: dict) -> list[str]:
    lines = [
        (
            f"links {kind}: alpha {format_seconds(link['alpha_s'])}, one pair "
            f"{format_rate(link['pair_bytes_per_s'])}, both directions {format_rate(link['both_bytes_per_s'])}, all "
            f"busy {format_rate(link['busy_bytes_per_s'])} a rank"
        )
        for kind, link in calibration["links"].items()
    ]
    return [*lines, f"adding, all ranks at once: {format_rate(1 / calibration['gamma_s_per_byte'])}"]


def _pairs(rows: list[dict] | None, hosts: list[str]) -> list[str]:
    if not rows:
        return []
    pairs = ((row["first"], row["second"], row["latency_s"], row["bytes_per_s"]) for row in rows)
    cells = (("pair", f"{a}", f"{b}:", format_seconds(latency), format_rate(rate)) for a, b, latency, rate in pairs)
    worst = worst_pairs(rows)
    slow, thin = ((worst[kind]["first"], worst[kind]["second"]) for kind in ("latency", "bandwidth"))
    return [
        *text_lines(cells, "lrrrr"),
        f"worst pairs: latency {slow[0]} and {slow[1]}, bandwidth {thin[0]} and {thin[1]}",
        *(sick(rows, hosts) or ["no rank or host stands out"]),
    ]


def fit_lines(fits: Iterable[dict]) -> list[str]:
    lines = []
    for group in fits:
        wire = "" if group["wire_dtype"] == group["dtype"] else f" over a wire of {group['wire_dtype']}"
        what = f"{group['dtype']} {group['op']}{wire}, {group['placement']} place"
        lines += [f"# fit of {what}:"] if group["models"] else []
        lines += [f"#   {_model(name, model)}" for name, model in group["models"].items()]
    return lines


def _model(name: str, model: dict) -> str:
    text = f"{name}: " + ", ".join(_regime(model["work"], regime) for regime in model["regimes"])
    if model["median_error"] is None:
        return f"{text}; not judged: fewer than four sizes"
    return (
        f"{text}; on {plural(len(model['held_out']), 'size')} held out off by {format_percent(model['median_error'])} "
        f"(median), {format_percent(model['worst_error'])} (worst)"
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
    since = f"from {format_bytes(regime['first_bytes'])} on " if regime["first_bytes"] else ""
    return f"{since}{' + '.join(start)} + n x ({' + '.join(slope)}) ns"


def verdict_line(rows: list[dict]) -> str:
    wrong = [row for row in rows if row["wrong"]]
    judged = sum(row["wrong"] is not None for row in rows)
    refused = sum(row["status"] == REFUSED for row in rows)
    text = f"# checked {judged} rows, every element twice: {len(wrong)} wrong, {refused} refused"
    noisy = sum(row["status"] != REFUSED and row["cv"] > NOISY_CV for row in rows)
    return text + (f"; {noisy} unreliable, of a cv above {NOISY_CV:.0%}" if noisy else "")
