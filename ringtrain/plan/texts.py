"""Texts of predictions."""

from ringtrain.template import Template

# tables, plots
BATCH_OF_ALL = Template("batch {images:,} over all ranks")
BATCH_OF_A_RANK = Template("batch {images:,} of each rank")
