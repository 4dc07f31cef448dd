"""Errors and notes of the all-reduces: their names, number types, wires, tuning files and automatic choice."""

from ringtrain.template import Template

# choice
NEXT = Template("; {name} {time}")
NO_MESSAGES = Template("; it sends no messages")
