"""Notes and errors of the list of runs."""

from ringtrain.template import Template

# search
NO_FOLDER = Template(
    "{folder} is {what}: name a run folder, or a folder with run folders; `ringtrain train` makes runs/"
)
NOT_THERE, NOT_A_FOLDER = Template("not there"), Template("not a folder")
UNREADABLE = Template("{path} cannot be read: {problem}")

# summary
LEFT_OUT = Template("{name} is not listed: {why}")
NO_FILE = Template("it has no {name}")
NO_START = Template("its {log} does not begin with the start of a run")
ENDED = Template("{why} ({outcome}{text})")
ENDED_WITH = Template(": {text}")
NO_OPTIONS = Template("{name} is listed without its options: {why}")
IN_CONFIG = Template("its {config} is damaged: {error}")

# conditions
NO_CONDITION = Template(
    "--where {text!r} is not NAME OPERATOR VALUE, such as 'lr>=0.1'; operators: =, !=, <, <=, >, >="
)
UNKNOWN_NAME = Template("{flag} {text!r}: no option or result of a run is called {name!r}; {hint}")
NOT_ORDERED = Template("--where {text!r}: {name} has no order: compare it by = or !=")
WANTED = Template("--where {text!r}: {name} wants {wanted}, or none")
WANTED_NUMBER = Template("a number")
WANTED_FRACTION = Template("a fraction such as 0.95 or 95%")
WANTED_BOOL = Template("true or false")
