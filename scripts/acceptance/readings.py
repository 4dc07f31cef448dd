"""Readings of the stages' files: rows for the report, the shortcomings, and figures to compare with a bar."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from files import read_json

TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-2}  # of a convolution against PyTorch's in float32; rounding alone: 2e-3
SAID_OF_NETS = ("model", "batch", "precision", "gradient_apart", "worst_parameter_apart", "worst_share_off")
CUDNN_WAY, PYTORCH = "cuDNN", "PyTorch"  # their names among the ways of a convolution
WGMMA = "wgmma"  # in the names of ways
EXACT = "exact.json"  # rows of nets that were compared and not timed
COPIED_BYTES = 1 << 26  # buffers from here on are read from memory, and not from a cache


@dataclass(frozen=True, slots=True)
class Reading:
    """``short``: what does not hold, nothing where all does; ``figures``: by name, more is better."""

    rows: list[dict] = field(default_factory=list)
    short: str = ""
    figures: dict[str, float] = field(default_factory=dict)


def content_of(folder: Path, name: str = "rows.json"):
    """Return the content of a stage's file; no rows without one."""
    return read_json(folder / name) or []


def rows_alone(folder: Path) -> Reading:
    return Reading(content_of(folder))


def warm(folder: Path) -> Reading:
    counts = read_json(folder / "rows.json")
    short = f"{counts['missing']} of {counts['kernels']} were missing" if counts.get("missing") else ""
    return Reading([counts] if counts else [], short)


def probe(folder: Path) -> Reading:
    rows = read_json(folder / "probe.json").get("families", {})
    short = [name for name in rows if rows[name]["status"] != "passed"]
    table = [{"family": name, **{key: row[key] for key in row if key != "files"}} for name, row in rows.items()]
    return Reading(table, f"did not pass: {', '.join(short)}" if short else "")


def exact(folder: Path) -> Reading:
    """Nets that were compared, and not timed."""
    rows = content_of(folder, EXACT)
    return Reading([{key: row[key] for key in SAID_OF_NETS} for row in rows], "" if rows else "nothing was compared")


def losses(folder: Path) -> Reading:
    rows = content_of(folder)
    apart = [f"{row['what']} at {row['ranks']} ranks" for row in rows if not row["apart"] <= row["allowed"]]
    return Reading(rows, f"further apart than allowed: {', '.join(apart)}" if apart else "")


def ratios(folder: Path) -> Reading:
    """Return training beside PyTorch. Refused nets end the program, so the nets of each row compute the same."""
    rows, figures = [], {}
    for row in content_of(folder):
        about = {key: row[key] for key in SAID_OF_NETS}
        about |= {f"{side}, images/s": rate for side, rate in row.get("images_per_s", {}).items()}
        about |= {f"× {side}": ratio for side, ratio in row.get("ratio", {}).items()}
        rows.append(about | {"left out": row["left_out"]})
        name = f"{row['model']} {row['precision']} batch {row['batch']}"
        figures |= {f"{name}, × {side}": ratio for side, ratio in row.get("ratio", {}).items()}
    return Reading(rows, "" if figures else "nothing was timed", figures)


# ── layers ────────────────────────────────────────────────────────────────────────────────────────────────────────
def layers(folder: Path) -> Reading:
    """Return the fastest way of each pass and shape beside PyTorch's time, and the fastest by wgmma beside cuDNN's;
    rows.json has every way, and failed.json the kinds whose process did not end well."""
    kept, groups = content_of(folder), defaultdict(list)
    for row in kept:
        groups[row["precision"], row["pass"], row["shape"]].append(row)
    wrong = [_name(row) for row in kept if _is_wrong(row)]
    rows = [_fastest(key, ways) for key, ways in groups.items()]
    short = [f"{len(wrong)} ways are wrong: {', '.join(wrong[:5])}"] if wrong else []
    short += [f"{row['kind']}: {row['said']}" for row in content_of(folder, "failed.json")]
    return Reading(rows, "; ".join(short if kept else [*short, "nothing was measured"]), _speeds(rows))


def _name(row: dict) -> str:
    return f"{row['way']} of {row['pass']} {row['shape']} in {row['precision']} ({row.get('said') or row['error']})"


def _is_wrong(row: dict) -> bool:
    """A library may say that it cannot; ringtrain's own kernels may not."""
    if row.get("said"):
        return not row["library"]
    return row["way"] != PYTORCH and not row["error"] <= TOLERANCES[row["precision"]]


def _fastest(key: tuple, ways: list[dict]) -> dict:
    precision, what, shape = key
    timed = sorted((way for way in ways if "us" in way), key=lambda way: way["us"])
    theirs = next((way["us"] for way in timed if way["way"] == PYTORCH), None)
    timed = [way for way in timed if way["way"] != PYTORCH]
    row = {"precision": precision, "pass": what, "shape": shape, "ways": len(ways)}
    row["worst error"] = max((way["error"] for way in ways if "error" in way), default=None)
    row["libraries that cannot"] = "; ".join(sorted({way["said"] for way in ways if way["library"] and "said" in way}))
    row |= {"torch us": theirs} if theirs else {}
    if not timed:
        return row
    row |= {key: timed[0][key] for key in ("way", "us", "TF/s")}
    return row | ({"× torch": theirs / timed[0]["us"]} if theirs else {}) | _by_wgmma(timed)


def _by_wgmma(timed: list[dict]) -> dict:
    """Return the fastest way by wgmma, and cuDNN's time, of those that there are."""
    ours = next((way for way in timed if WGMMA in way["way"]), None)
    theirs = next((way for way in timed if way["way"] == CUDNN_WAY), None)
    cells = {"wgmma": ours["way"], "wgmma us": ours["us"]} if ours else {}
    cells |= {"cuDNN us": theirs["us"]} if theirs else {}
    return cells | ({"wgmma × cuDNN": theirs["us"] / ours["us"]} if ours and theirs else {})


def _speeds(rows: list[dict]) -> dict[str, float]:
    """Return PyTorch's time over ours, and cuDNN's over that by wgmma, by precision and pass: of all shapes together
    that have both."""
    return _ratios(rows, "us", "torch us", "× torch") | _ratios(rows, "wgmma us", "cuDNN us", "wgmma × cuDNN")


def _ratios(rows: list[dict], ours: str, theirs: str, name: str) -> dict[str, float]:
    sums = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if ours in row and theirs in row:
            pair = sums[f"{row['precision']} {row['pass']}, {name}"]
            pair[:] = pair[0] + row[theirs], pair[1] + row[ours]
    return {key: other / us for key, (other, us) in sums.items()}


# ── all-reduce ────────────────────────────────────────────────────────────────────────────────────────────────────
def allreduce(folder: Path) -> Reading:
    """Return each algorithm's time by size, its speedup over the MPI through the host, and for ``mapped`` what
    share of a copy's bandwidth its reads and writes reach: of every rank its buffer is read once and written once."""
    sweeps = filter(None, (content_of(folder, f"{ranks}-ranks.json") for ranks in (2, 4)))
    rows = [_reduced(row) for sweep in sweeps for row in sweep["rows"]]
    _compare(rows, dict(content_of(folder, "ceilings.json")).get("copy, TB/s"))
    missing = [f"at {n} ranks" for n in (2, 4) if not any(_is_mapped(row) and row["ranks"] == n for row in rows)]
    wrong = [f"{row['algorithm']} at {row['ranks']} ranks" for row in rows if row.get("wrong")]
    short = [f"mapped was not measured {' and '.join(missing)}"] if missing else []
    short += [f"wrong sums: {', '.join(dict.fromkeys(wrong))}"] if wrong else []
    return Reading(rows, "; ".join(short), _reduced_figures(rows))


def _reduced(row: dict) -> dict:
    kept = ("ranks", "algorithm", "transport", "way", "bytes", "status", "reason")
    cells = {key: row[key] for key in kept if row.get(key) not in (None, "")}
    return cells | {"ms": 1e3 * row["median_s"], "wrong": row.get("wrong")} if row.get("median_s") else cells


def _is_mapped(row: dict) -> bool:
    return row["algorithm"] == "mapped" and "ms" in row


def _compare(rows: list[dict], copy: float | None) -> None:
    staged = {(row["ranks"], row["bytes"]): row["ms"] for row in rows if row["algorithm"] == "mpi" and "ms" in row}
    for row in rows:
        base = staged.get((row["ranks"], row["bytes"]))
        if base and "ms" in row:
            row["× mpi through the host"] = base / row["ms"]
        if copy and _is_mapped(row) and row["bytes"] >= COPIED_BYTES:
            row["share of a copy"] = 2 * row["ranks"] * row["bytes"] / (row["ms"] / 1e3) / (copy * 1e12)


def _reduced_figures(rows: list[dict]) -> dict[str, float]:
    shown = {"× mpi through the host": "× host", "share of a copy": "share of a copy"}
    cells = ((row, key) for row in filter(_is_mapped, rows) for key in shown if key in row)
    return {f"mapped, {r['bytes'] >> 20} MiB, {r['ranks']} ranks, {shown[key]}": r[key] for r, key in cells}
