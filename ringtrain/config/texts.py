"""Errors of run files, flags and recipes that a user sees."""

from ringtrain.template import Template

# resolve
NOT_TOML = Template("{source} is not valid TOML: {error}")
RUN_FILE = Template("run file {path}")
UNREADABLE = Template("run file {path} cannot be read: {error}")
WRITE_TOML = Template("{error}. It looks like YAML, and a run file is TOML: write {key} = {value}")
BOTH_LENGTHS = Template("both {epochs_name} ({epochs}) and {iterations_name} ({iterations}) are given; give one")
UNKNOWN_KEY = Template("{source}: unknown key {key!r}; {hint}")
NOT_OF_A_RECIPE = Template("{source}: {key!r} is not a recipe's key; {hint}")
RECIPE = Template("recipe of model {model}")
IN_FILE = Template("{source}: {key}")
IN_FLAG = Template("--{flag}")

# resolve: a value that is refused
REFUSED_FLAG = Template("{name} {value}: {wanted}")
REFUSED_KEY = Template("{name} is {value!r}; {wanted}")
WANTS = Template("it wants {wanted}")
LIST = Template("a list of whole numbers")
LIST_OF_EPOCHS = Template('a list like [4000] or ["30ep", "60ep"]')
IN_EPOCHS = Template("a whole number of iterations, or epochs like 5ep or 0.5ep")
A_WHOLE_NUMBER = Template("a whole number")
A_NUMBER = Template("a number")
TRUE_OR_FALSE = Template("true or false")
A_TEXT = Template("a text")
A_FINITE_NUMBER = Template("a finite number")
MORE_THAN_NO_EPOCH = Template("more than 0ep")
AT_LEAST = Template("at least {bound}")
MORE_THAN = Template("more than {bound}")
LESS_THAN = Template("less than {bound}")
AT_MOST = Template("at most {bound}")
TOO_LONG = Template("{name} is a number of {digits} digits; it wants {wanted}")
EMPTY = Template("{name} is empty: {why}")
NOT_UTF8 = Template("{name} is {value!r}, which is not text in UTF-8")
ZERO_BYTE = Template("{name} is {value!r}; a name has no zero byte")
OR_PLUGIN = Template("{known}; one of your own needs --plugin FILE.py")
