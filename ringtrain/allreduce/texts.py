"""Errors and notes of the all-reduces: their names, number types, wires, tuning files and automatic choice."""

from ringtrain.template import Template

# choice
NEXT = Template("; {name} {time}")
NO_MESSAGES = Template("; it sends no messages")


# tuning
NOT_OBJECT = Template("{where} is {found!r}; wanted an object")

# tuning_file
TUNING_UNREADABLE = Template("{file} cannot be read: {reason}")
