"""The cost model of an all-reduce: its calibration, bounds and fit."""
