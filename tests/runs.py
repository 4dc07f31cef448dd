"""A model for runs of tests, and the records of a run's folder."""

import json

FC_NET = """
summary = "for tests"
input = { shape = [8, 8, 1], mean = "image", std = "channel" }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "hidden", kind = "Linear", units = 16 },
  { name = "relu", kind = "ReLU" },
  { name = "fc", kind = "Linear", units = 10 },
]
[recipe]
batch = 120
lr = 0.05
momentum = 0.9
"""


def records(folder, kind=None):
    """Of a run's log, in order; those of one kind."""
    every = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in every if kind in (None, record["event"])]
