"""A model for runs of tests, their start, and the records of a run's folder."""

import json
from contextlib import nullcontext

from ringtrain.train.options import read_options
from ringtrain.train.start.start import run_training
from ringtrain.train.stopping.signals import watching

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


def start(transport, run_file, flags, stop=None):
    """Train as flags and run file say. ``stop``: a flag that has recorded signals already."""
    with watching() if stop is None else nullcontext(stop) as noted:
        run_training(transport, read_options(run_file, flags), noted)


def records(folder, kind=None):
    """Of a run's log, in order; those of one kind."""
    every = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in every if kind in (None, record["event"])]
