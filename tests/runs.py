"""What tests read of a run's folder."""

import json


def records(folder, kind=None):
    """Of a run's log, in order; those of one kind."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in found if kind in (None, record["event"])]
