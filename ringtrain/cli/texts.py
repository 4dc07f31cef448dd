"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# compare.py
PICTURE = Template("the picture is in {path}")


# evaluate.py
AVERAGED = ", weights averaged (--ema)"
PERCENT = Template("{percent:.2f} %")


# hints.py
UNKNOWN_COMMAND = Template("no command {name!r}; {hint}")

# main.py
EMPTY = Template("{argument} is empty: {why}")


# slurm.py
NOT_HERE = Template("there is no {path} here: make sure that the nodes have it")


# world.py
FROM_RANK = Template("ringtrain: rank {rank}: {text}")
FROM = Template("ringtrain: {text}")
NOTE = Template("note: {note}")
