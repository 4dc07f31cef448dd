"""Thresholds for measured figures: those of an earlier run on such a GPU, kept in the project, less a tenth.

    docs/benchmarks/gpu-bars.json    {GPU: {stage: {figure: value}}}, more is better for all of them

There is no bar before a GPU of that name has run: then a figure is measured and not judged. Every run writes the file
anew with its own figures in it; to make these the bar, put it in the place of the project's.
"""

import json
from pathlib import Path

KEPT = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu-bars.json"
SHARE = 0.9  # of an earlier figure: runs differ by the rest


def read(path: Path = KEPT) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def judged(figures: dict[str, float], bars: dict[str, float]) -> tuple[list[dict], str]:
    """Return (rows for the report, the figures below their bar in words)."""
    rows, short = [], []
    for name, value in figures.items():
        bar = bars.get(name)
        rows.append({"figure": name, "measured": value, "bar": "no bar yet: measured" if bar is None else SHARE * bar})
        if bar is not None and not value >= SHARE * bar:
            short.append(f"{name} is {value:.3g}, and was {bar:.3g}")
    gone = [name for name in bars if name not in figures]
    short += [f"{name} was measured before, and is not now" for name in gone]
    return rows, "; ".join(short)


def merged(bars: dict, gpu: str, stage: str, figures: dict[str, float]) -> dict:
    own = bars.get(gpu, {})
    return {**bars, gpu: {**own, stage: figures}} if figures else bars
