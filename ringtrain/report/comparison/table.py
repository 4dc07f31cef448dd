"""A comparison as tables that fit the terminal, each with the runs' names in front, and as CSV."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ringtrain.humanize import RATE
from ringtrain.report.comparison.rows import FIELDS, least_and_most
from ringtrain.report.screen.words import FRACTIONS, metric_name
from ringtrain.show import tables
from ringtrain.show.tables import NOTHING, Column

MIB = 1 << 20


def mean_sd(value: float, sd: float | None, decimals: int | None = None) -> str:
    """Format a mean and its standard deviation, by default with two figures of the deviation: 38.4 ± 1.2."""
    if decimals is not None:
        return f"{value:.{decimals}f} ± {NOTHING if sd is None else f'{sd:.{decimals}f}'}"
    if not sd:
        return f"{format_figures(value)} ± {NOTHING if sd is None else 0}"
    decimals = min(max(0, 1 - math.floor(math.log10(sd))), 4)
    return f"{value:,.{decimals}f} ± {sd:,.{decimals}f}"


def _by_rank(form: Callable[[float], str], values: list) -> str:
    """Format a list by rank: one figure if all ranks have the same, else least and most."""
    ends = least_and_most(values)
    if ends is None:
        return NOTHING
    least, most = map(form, ends)
    return least if least == most else f"{least}-{most}"


def _lag(name: str, lags: Mapping) -> str:
    lag = lags.get(name)
    return NOTHING if not lag or lag["median"] is None else f"{lag['median']} / {lag['largest']}"


def _between(row: dict) -> str:
    """Format the sum over ranks: what the network between nodes has carried."""
    nbytes = row["between_bytes"]
    return NOTHING if row["nodes"] == 1 or not nbytes or None in nbytes else _mega(sum(nbytes))


def format_figures(value: float) -> str:
    """Format three significant figures, or all of a whole number: 0.0123, 1.23, 12.3, 1,235."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def figures_in(unit: float) -> Callable[[float], str]:
    """Return :func:`format_figures` of a value in this unit."""
    return lambda value: format_figures(value / unit)


_mega, _mib = figures_in(1e6), figures_in(MIB)
# Groups of columns that stay together if the width allows.
WHAT = (
    Column("strategy", "strategy", left=True),
    Column("exact", "exact", form=lambda exact: "yes" if exact else "no", left=True),
    Column("outcome", "ended", left=True),
)
SCORES = (
    Column("test_loss", "test loss", "last", "{:.4f}", min),
    Column("best_test_loss", "test loss", "best", "{:.4f}", min),
    Column("test_accuracy", "accuracy", "last, %", "{:.2f}", max, scale=100),
    Column("best_test_accuracy", "accuracy", "best, %", "{:.2f}", max, scale=100),
    *(Column(name, metric_name(name), "%", "{:.2f}", max, scale=100) for name in FRACTIONS),
    *(Column(name, metric_name(name), "", "{:.4g}", min) for name in ("perplexity", "rmse", "mae")),
    Column("r2", metric_name("r2"), "", "{:.4f}", max),
    Column("train_loss", "train loss", "last tenth", "{:.4f}", min),
    Column("train_accuracy", "accuracy", "of training, %", "{:.2f}", max, scale=100),
    Column("accuracy_difference", "difference", "points", "{:+.2f}", scale=100),
)
RANKS = Column("ranks", "ranks")
SPEED = (
    Column("iterations", "iterations", "", "{:,}"),
    Column("seconds", "time", "s", format_figures, min),
    Column("images_per_s", RATE, "", "{:,.0f}", max),
    Column("speed_ratio", "speed", "× first", "{:.2f}"),
    Column("exposed_share", "exposed", "%", "{:.1f}", scale=100),
)
TRAFFIC = (
    Column("bytes_sent", "sent", "MB a rank", partial(_by_rank, _mega)),
    Column("bytes_received", "received", "MB a rank", partial(_by_rank, _mega)),
    Column(None, "between nodes", "MB, all ranks", _between),
    Column("updates_per_s", "updates/s", "by rank", partial(_by_rank, format_figures)),
    Column("lag", "clock lag", "median / most", partial(_lag, "clock")),
    Column("lag", "version lag", "median / most", partial(_lag, "version")),
)
MEMORY = (
    Column("held_bytes", "held", "MiB a rank", partial(_by_rank, _mib)),
    Column("peak_bytes", "peak memory", "MiB a rank", partial(_by_rank, _mib)),
)
GROUPS = (WHAT, SCORES, (RANKS, *SPEED), TRAFFIC, MEMORY)
NAME = Column("name", "run", left=True)


# ── of variants over seeds ────────────────────────────────────────────────────────────────────────────────────────────
DECIMALS = {"{:.4f}": 4, "{:.2f}": 2, "{:.1f}": 1}  # of means by the form of one run; others: of the deviation
SD = ("_sd",)


def _means(columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(
        replace(column, form=partial(mean_sd, decimals=DECIMALS.get(str(column.form))), spread=SD) for column in columns
    )


def _ended(row: dict) -> str:
    return str(row["runs"]) if row["ended"] == row["runs"] else f"{row['ended']} of {row['runs']}"


def _mean_between(row: dict) -> str:
    return NOTHING if row["nodes"] == 1 else Column("between_bytes", "", form=mean_sd, scale=1e-6, spread=SD).text(row)


def _difference(value: float, sd: float | None) -> str:
    text = mean_sd(value, sd, 2)
    return text if text.startswith("-") else f"+{text}"


VARIANT_GROUPS = (
    (*WHAT[:2], Column(None, "seeds", "", _ended)),
    (*_means(SCORES[:-1]), replace(SCORES[-1], form=_difference, spread=SD)),
    (RANKS, *_means(SPEED)),
    (
        Column("bytes_sent", "sent", "MB, all ranks", mean_sd, min, scale=1e-6, spread=SD),
        Column("bytes_received", "received", "MB, all ranks", mean_sd, scale=1e-6, spread=SD),
        Column(None, "between nodes", "MB, all ranks", _mean_between),
        Column("held_bytes", "held", "MiB, most", mean_sd, scale=1 / MIB, spread=SD),
        Column("peak_bytes", "peak memory", "MiB, most", mean_sd, scale=1 / MIB, spread=SD),
    ),
)
VARIANT_NAME = Column("name", "variant", left=True)


# ── for other programs ────────────────────────────────────────────────────────────────────────────────────────────────
def csv_text(rows: Sequence[dict], variants: Sequence[dict] = ()) -> str:
    """Return a line a run; lists by rank become the least and the most. Lines of ``variants`` follow, whose ``kind`` is
    "mean"; the ``kind`` of runs is "run"."""
    flat = [_flat(row) for row in rows]
    if variants:
        flat = [{"kind": "run", **row} for row in flat]
        flat += [{"kind": "mean", **row, "seeds": " ".join(map(str, row["seeds"]))} for row in variants]
    return tables.csv_text(dict.fromkeys(name for row in flat for name in row), flat)


def _flat(row: dict) -> dict:
    flat: dict = {}
    for name in FIELDS:
        value = row[name]
        if name == "lag":
            for what in ("clock", "version"):
                lag = (value or {}).get(what) or {}
                flat |= {f"{what}_lag_{kind}": lag.get(kind) for kind in ("median", "largest")}
        elif name in LISTS:
            least, most = least_and_most(value) or (None, None)
            flat |= {f"{name}_least": least, f"{name}_most": most}
        else:
            flat[name] = value
    return flat


LISTS = {"held_bytes", "updates_per_s", *FIELDS[FIELDS.index("lag") + 1 :]}
