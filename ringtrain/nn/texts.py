"""Errors of model files, layers and shapes that a user sees."""

from ringtrain.template import Template

# blocks
TOO_MANY_LAYERS = Template("the model has more than {most:,} layers: use fewer of them, or larger ones")
UNKNOWN_BLOCK = Template("layer {layer!r}: unknown block {block!r}; {hint}")
UNKNOWN_BLOCK_KEY = Template("layer {layer!r}: block {block!r} takes no key {key!r}; {hint}")
BLOCK_KEY_MISSING = Template("layer {layer!r}: block {block!r} wants the key {key!r}")

# graph
UNKNOWN_LAYER = Template("the model has no layer {layer!r}; {hint}")

# loss
CLASSES = Template(
    "the last layer, {layer!r}, gives {shape}, but the data set has {count}: use another data set, "
    "--classes {classes}, or {model} that ends in Linear with units = {classes}"
)
NO_LABELS = Template(
    "the data set has no labels, and --loss ce takes class numbers: name both, as in FILE.h5:images,labels "
    "or x.npy,y.npy"
)
CLASS_NUMBERS = Template(
    "--loss ce takes class numbers, but the labels are values of shape {shape}: give --loss mse, mae, huber or bce, or "
    "a data set with class numbers"
)
DENSE_CLASSES = Template(
    "the last layer, {layer!r}, gives {shape}, but each label has {labels} class numbers, for which --loss ce takes "
    "{wanted}: use a model that ends in this shape, or another data set"
)
ONE_MORE_EXTENT = Template("their shape and the number of classes")
OTHER_VALUES = Template(
    "the last layer, {layer!r}, gives {shape}, but each label is {labels}, and --loss {loss} takes outputs and labels "
    "of one shape: {remedy}"
)
ONE_NUMBER = Template("one number")
CLASSES_INSTEAD = Template("give --loss ce if labels are classes, or a model that ends in Linear with units = 1")
SHAPE_INSTEAD = Template("use a model that ends in the labels' shape, or another data set")
UNKNOWN_LOSS = Template("--loss {name}: unknown loss (one of your own needs --plugin FILE.py); {hint}")
A_MODEL = Template("a model")
A_COPY = Template("give --model a copy of {file}")

# settings: what follows the name of a key
WHOLE_NUMBER = Template("wants a whole number of at least {least}, got {value!r}")
WHOLE_NUMBER_BETWEEN = Template("wants a whole number of at least {least} and at most {most}, got {value!r}")
NUMBER = Template("wants a number, got {value!r}")
NUMBER_WITHIN = Template("wants a number {bounds}, got {value!r}")
FROM = Template("of at least {least:g}")
ABOVE = Template("above {least:g}")
UP_TO = Template("at most {most:g}")
BELOW = Template("below {most:g}")
FLAG = Template("wants true or false, got {value!r}")
WORD = Template("wants one of these words, got {value!r}; {hint}")
PARAMETER = Template('wants a table like {{ fill = "gaussian", std = 0.01 }}, got {value!r}')
PARAMETER_OR_FLAG = Template('wants true, false or a table like {{ fill = "gaussian", std = 0.01 }}, got {value!r}')
FILL_KEY_MISSING = Template("fill {fill!r} wants the key {key!r}")
UNKNOWN_FILL_KEY = Template("has an unknown key {key!r}; {hint}")
AT_KEY = Template("{key} {problem}")

# shapes
MISFIT = Template("layer {layer!r} ({kind}) got {got}, wants {wanted}")
NO_INPUT = Template("no input")
ONE_INPUT = Template("one input")
SEVERAL_INPUTS = Template('two or more inputs: inputs = ["a", "b"]')
IMAGE = Template("an image HxWxC: put it before the layer that flattens")
FEATURES = Template("a list of features, or a sequence LxD of them: put a Flatten or GlobalAvgPool before it")
SEQUENCE = Template("a sequence LxD of features: an input of this shape, or an Embedding before it")
NUMBERS = Template("a list of whole numbers, those of the entries")
CHANNEL_GROUPS = Template("channels that groups = {groups} divides")
HEADS = Template("a sequence LxD whose D heads = {heads} divides")
VOLUME = Template("a volume DxHxWxC")
SPATIAL = Template("spatial axes before its channels: a sequence LxD, an image HxWxC or a volume DxHxWxC")
WINDOW = Template("at least {side} with padding, the size of its kernel")
GROUPS = Template("channels in and out ({inputs} and {outputs}) that groups = {groups} divides")
SAME_SHAPE = Template("inputs of the same shape")
SAME_BUT_CHANNELS = Template("inputs that differ in their channels only")
ODD_SIZE = Template("an odd size, which has a middle, but size = {size}")
ONE_WITHIN = Template('k = 1 with region = "within", but k = {k:g}')
OUTPUT_PAD = Template("output_pad below stride = {stride}, but output_pad = {output_pad}")
NOTHING_LEFT = Template("more pixels than pad = {pad} takes away")
PADDING = Template("pad below kernel = {kernel}, but pad = {pad}")

# sequence
NO_ENTRY = Template("which an input other than the whole numbers 0 to {last} makes so: look at the data and at entries")
ENTRIES_IN_16_BITS = Template(
    "layer {layer!r} (Embedding) has {entries} entries, but activations of {dtype} hold whole numbers up to {most} "
    "alone: use --precision float32"
)

# spec
NO_MODEL = Template("no model or model file {name!r}; {hint}")
UNREADABLE = Template("{source}: cannot be read: {error}")
NOT_TOML = Template("{source}: not a TOML file: {error}")
AT_SOURCE = Template("{source}: {error}")
UNKNOWN_KEY = Template("{owner} has an unknown key {key!r}; {hint}")
THE_MODEL = Template("the model")
A_RESULT = Template("an entry of results")
TYPE = Template("{key} wants {type}, got {value!r}")
ENTRY_TYPE = Template("{key} wants {type}, got the entry {value!r}")
A_TEXT = Template("a text")
A_TABLE = Template("a table")
A_LIST_OF_TABLES = Template("a list of tables")
INPUT_SHAPE = Template(
    "input: shape wants one to four whole numbers, such as [height, width, channels], [length] or [length, channels], "
    "got {value!r}"
)
INPUT_NO_IMAGE = Template(
    "input: {key} is for images of [height, width, channels], and shape is {shape}: leave {key} out"
)
INPUT_KEY = Template("input: {key}")
LAYER_NAME = Template("a layer wants a name of letters, digits and _ . -, got {name!r} in {entry!r}")
UNKNOWN_KIND = Template("layer {layer!r}: unknown kind {kind!r} (one of your own needs --plugin FILE.py); {hint}")
LAYER_OF_KIND = Template("layer {layer!r} ({kind})")
LAYER_KEY = Template("layer {layer!r} ({kind}): {key}")
LAYER_KEY_MISSING = Template("layer {layer!r} ({kind}) wants the key {key!r}")
INPUT_NAMES = Template("layer {layer!r}: inputs wants a list of layer names, got {value!r}")

# wiring
NO_LAYERS = Template("the model has no layers: it wants at least one")
UNREAD_LAYER = Template(
    "no layer reads layer {layer!r}, which is not the last one: name it in the inputs of another layer, or remove it"
)
NAME_TAKEN = Template("layer name {layer!r} is taken: names are unique, and {images!r} names the images")
UNKNOWN_INPUT = Template("layer {layer!r} reads {source!r}, but no layer before it has that name; {hint}")
TOO_LARGE = Template("{name} is {shape}, more numbers than any memory holds: use smaller sizes")
THE_INPUT = Template("the input")
A_LAYER = Template("layer {layer!r}")
PARAMETER_OF_LAYER = Template("{parameter} of layer {layer!r}")

# freeze, head
NOTHING_TO_FREEZE = Template("--freeze {pattern}: no layer or parameter has such a name; {hint}")
ALL_FROZEN = Template("--freeze {patterns}: that is every parameter, and none is left to train: freeze fewer")
NO_HEAD = Template(
    "--classes {classes}: the output of model {model!r} is not that of one last Linear or Conv2D layer: change the "
    "model file itself"
)
HEAD_IN_BLOCK = Template(
    "--classes {classes}: the last layer of model {model!r}, {layer!r}, is in a block: give it {key} = {classes} in a "
    "copy of the model file"
)
