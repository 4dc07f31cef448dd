"""A training run: assembles the parts of a run, trains, evaluates, saves and reports."""
