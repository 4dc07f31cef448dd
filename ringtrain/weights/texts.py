"""Errors and notes on weights in files that a user sees."""

from ringtrain.template import Template

# packages
NO_PACKAGE = Template("this needs the Python package {package}: python -m pip install 'ringtrain[{extra}]'")

# tensor_file
UNREADABLE = Template("{path}: cannot be read: {reason}")
NO_SAFETENSORS = Template("{path} is no whole safetensors file: {error}")
LONG_HEADER = Template("its header has more than {most:,} bytes")
CHANGED = Template("it became shorter while it was read")
OTHER_TYPE = Template("{path}: tensor {name!r} is of type {type}; weights are of one of these: {known}")
NOT_FINITE = Template(
    "{path}: tensor {name!r} has values that are not finite: take a file of a run that did not diverge"
)

# matching
MATCHED = Template("{matched} of {total} matched")
NEW = Template("new: {names}")
NOT_USED = Template("not used: {names}")
AND_MORE = Template("{shown} and {more} more")
OF_SHAPE = Template("{name} ({here}, there {there})")
DIFFERS = Template("{name} is {here}, there {there}")
SHAPES_DIFFER = Template(
    "--init {source} is of another network: {differing}. Only the last layer may differ: give the --model that the "
    "weights are of"
)
NOTHING_MATCHES = Template(
    "--init {source}: none of its {names} names is one of this network, such as {asked!r} (nearest there: {near}). "
    "Give the --model that the weights are of"
)

# sources
PICKLE = Template(
    "--init {path}: a file of torch.save may run programs when it is read. Convert it where it comes from: python -c "
    "\"import torch, safetensors.torch as s; s.save_file(torch.load('{path}', weights_only=True), 'w.safetensors')\""
)
INITIAL = Template("weights of {source}: {words}")

# export
OTHER_SUFFIX = Template("-o {path}: give a file .safetensors or .onnx")
EXISTS = Template("{path} is there already: give another -o, or --force to replace it")
NO_STATISTICS = Template(
    "checkpoint {path} is of an earlier version, which did not keep the mean of the training images, and model "
    "{model!r} subtracts it: go on with the run by --resume, for one iteration, and export that"
)

# onnx
TOO_LARGE = Template(
    "the weights take {nbytes:,} bytes, and an ONNX file holds {most:,} at most: export to .safetensors"
)
NO_OPERATOR = Template(
    "layer {layer!r}: there is no ONNX operator for layer kind {kind} ({hint}): export to .safetensors"
)
