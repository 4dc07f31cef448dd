"""Errors of model files, layers and shapes that a user sees."""

from ringtrain.template import Template

# graph
UNKNOWN_LAYER = Template("the model has no layer {layer!r}; {hint}")


# freeze, head
NO_HEAD = Template(
    "--classes {classes}: the output of model {model!r} is not that of one last Linear or Conv2D layer: change the "
    "model file itself"
)
