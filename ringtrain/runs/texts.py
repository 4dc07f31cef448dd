"""Notes and errors of the list of runs."""

from ringtrain.template import Template

# search
UNREADABLE = Template("{path} cannot be read: {problem}")

# summary
NO_FILE = Template("it has no {name}")
ENDED_WITH = Template(": {text}")
