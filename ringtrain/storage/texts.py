"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

VALUE_WRONG = Template("its contents are not those of a checkpoint: {name} is {value!r}")
