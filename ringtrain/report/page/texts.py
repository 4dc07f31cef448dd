"""Texts of the page, and errors of what it reads."""

from ringtrain.template import Template

# timeline.py
RANK = Template("rank {rank}")


# sections.py
CURVES = Template("Learning curves")
COMMUNICATION = Template("Communication")
TIMELINE = Template("Timeline of the ranks")
CLASSES = Template("Results by class")
