"""The report of an acceptance in Markdown, from the content of report.json."""


def markdown(told: dict) -> str:
    facts, stages = told["facts"], told["stages"]
    lines = [f"# Acceptance on {facts.get('gpu', 'a GPU')}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    lines += ["", *table([_summary(stage) for stage in stages])]
    for stage in stages:
        lines += ["", f"## {stage['title']}", "", f"`{stage['command']}`, {stage['seconds']:.0f} s: {stage['status']}"]
        lines += ["", stage["said"]] if stage["said"] else []
        lines += ["", *table(stage["judged"])] if stage.get("judged") else []
        lines += ["", *table(stage["rows"])] if stage["rows"] else []
    return "\n".join(lines) + "\n"


def _summary(stage: dict) -> dict:
    row = {"stage": stage["title"], "wanted": stage["wanted"], "outcome": stage["status"]}
    return row | ({"played": stage["played"]} if stage.get("played") else {})


def table(rows: list[dict]) -> list[str]:
    """Return the lines of a table; its columns are the rows' keys, in the order of their first use."""
    if not rows:
        return []
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([say(row.get(key)) for key in columns] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def say(value) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value).replace("|", "\\|").replace("\n", " ")
