"""Texts of predictions."""

from ringtrain.template import Template

# layer_times, exchange_times
NO_LAYERS = Template("{path} is no file of `ringtrain time MODEL --json`: {reason}")

# plan_file
NO_PLAN = Template("{path} is no file of `ringtrain plan MODEL --json`: {reason}")
BAD_FIELD = Template("{name} is {value!r}")

# tables, plots
BATCH_OF_ALL = Template("batch {images:,} over all ranks")
BATCH_OF_A_RANK = Template("batch {images:,} of each rank")
