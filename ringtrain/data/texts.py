"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# stored/
ARRAY_TYPE = Template(
    "{where} is of type {dtype}: ringtrain reads whole numbers and floats of up to 64 bits (uint8, int16, float32, …)"
)
ENDED_BEFORE = Template("{where} ends before byte {offset}, where an example lies: it was changed, or the copy is cut")


# grammar.py, source.py
NOT_FINITE = Template("{where} has values that are not finite (NaN or infinite): remove or replace these examples")


# layout.py
MAKE = Template("make the file with `ringtrain data make`")
MAKE_OR_COPY = Template(MAKE + " or copy it again")
CLASSES_NO_NAMES = Template("the attribute classes is not a list of names: " + MAKE)
NO_ARRAY = Template("is not an array of this file ({hint})")


# content.py
CHANNELS_FIRST = Template(
    "{where}: images have the shape {shape}, which looks like [N, C, H, W]: move the channels last "
    "(np.moveaxis(x, 1, 3))"
)
NO_EXAMPLES = Template("{where}: there are no examples")
LABELS_RANGE = Template(
    "{where}: labels lie in {low} … {high}; they must be class numbers from 0 to {most}, or -1 for no label"
)


# dataset.py
OUT_OF_MEMORY = Template("it takes more memory than there is")
IN_FILE = Template("{path}: {problem}")
TOO_LARGE = Template("{path} could not be read: " + OUT_OF_MEMORY)

# decoding.py
DECODING = Template("{what}: {reason}")


# idx.py
NOT_READ_FILE = Template("{path} could not be read")

# images.py
NO_IMAGE = Template("{file} could not be read as an image")

# make.py
SHAPES_DIFFER = Template("{name}: test images have the shape {test}, training images {train}: they must be the same")

# image_files
SHARD_DAMAGED = Template("{shard} is no whole tar archive: at byte {offset}: {error}; copy it again")
MEMBER_AT = Template("{shard}: member {member} at byte {offset}")
NO_LABEL = Template(
    MEMBER_AT + " has no label: give a member {stem}.cls with a class number, or put it under a folder of its class"
)
LABEL_UNREADABLE = Template(MEMBER_AT + " has no class number: {error}")


# npz.py
UNDERSTOOD = Template("x_train and y_train (x_test and y_test too), x and y, or images and labels")
NPZ_NO_ARCHIVE = Template("{path} could not be read: it is not a whole archive; write it with numpy.savez")


# sources.py
SOURCE_UNREADABLE = Template("{path} could not be read: {error}")
