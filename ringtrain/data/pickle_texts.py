"""What :mod:`ringtrain.data.pickles` says."""

from ringtrain.template import Template

# ── pickles ───────────────────────────────────────────────────────────────────────────────────────────────────
PICKLE_NAMES = Template("{where} is refused: it names {name}, and a pickle of plain values and NumPy arrays does not")
PICKLE_BROKEN = Template("{where} is no pickle of plain values and NumPy arrays: {error}; copy it again")
PICKLE_TAKES_MEMORY = Template("{where} is refused: to unpickle it takes more than {bytes:,} bytes of memory")
PICKLE_ENDS = Template("{where} is refused: the process that unpickles it ended by {signal}, within {seconds} s")
