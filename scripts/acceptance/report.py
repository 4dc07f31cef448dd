"""The report of an acceptance in Markdown, from the content of report.json, and thresholds for its figures.

    docs/benchmarks/gpu-bars.json    {GPU: {stage: {figure: value}}}, more is better for all of them

are the figures of an earlier run on such a GPU, of which a tenth may be missing. There is no bar before a GPU of that
name has run: then a figure is measured and not judged. Every run writes the file anew with its own figures in it; to
make these the bar, put it in the place of the project's.
"""

from pathlib import Path

from files import read_json

BARS = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu-bars.json"
SHARE = 0.9  # of an earlier figure: runs differ by the rest


def judged(figures: dict[str, float], bars: dict[str, float]) -> tuple[list[dict], str]:
    """Return (rows for the report, the figures below their bar in words)."""
    rows, short = [], []
    for name, value in figures.items():
        bar = bars.get(name)
        rows.append({"figure": name, "measured": value, "bar": "no bar yet: measured" if bar is None else SHARE * bar})
        if bar is not None and not value >= SHARE * bar:
            short.append(f"{name} is {value:.3g}, and was {bar:.3g}")
    short += [f"{name} was measured before, and is not now" for name in bars if name not in figures]
    return rows, "; ".join(short)


def with_bars(gpu: str, figures: dict[str, dict[str, float]]) -> dict:
    """Return the project's bars, in which these figures of a GPU replace those of their stages."""
    bars = read_json(BARS)
    new = {stage: values for stage, values in figures.items() if values}
    return {**bars, gpu: {**bars.get(gpu, {}), **new}} if new else bars


def markdown(content: dict) -> str:
    facts, stages = content["facts"], content["stages"]
    lines = [f"# Acceptance on {facts.get('gpu', 'a GPU')}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    lines += ["", *table([_summary(stage) for stage in stages])]
    for stage in stages:
        lines += ["", f"## {stage['title']}", "", f"`{stage['command']}`, {stage['seconds']:.0f} s: {stage['status']}"]
        for part in ([stage["said"]] if stage["said"] else [], table(stage["judged"]), table(stage["rows"])):
            lines += ["", *part] if part else []
    return "\n".join(lines) + "\n"


def _summary(stage: dict) -> dict:
    row = {"stage": stage["title"], "wanted": stage["wanted"], "outcome": stage["status"]}
    return row | ({"played": stage["played"]} if stage["played"] else {})


def table(rows: list[dict]) -> list[str]:
    """Return the lines of a table; its columns are the rows' keys, in the order of their first use."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([say(row.get(key)) for key in columns] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines] if rows else []


def say(value) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value).replace("|", "\\|").replace("\n", " ")
