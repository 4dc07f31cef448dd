"""Errors and notes on weights in files that a user sees."""

from ringtrain.template import Template

# packages
NO_PACKAGE = Template("this needs the Python package {package}: python -m pip install 'ringtrain[{extra}]'")

# tensor_file
UNREADABLE = Template("{path}: cannot be read: {reason}")
NO_SAFETENSORS = Template("{path} is no whole safetensors file: {error}")
