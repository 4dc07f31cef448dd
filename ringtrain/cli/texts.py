"""The errors and notes of several commands, each with named fields."""

from ringtrain.template import Template

AVERAGED = ", weights averaged (--ema)"
UNKNOWN_COMMAND = Template("no command {name!r}; {hint}")
