"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# reader.py
VALUE_WRONG = Template("its contents are not those of a checkpoint: {name} is {value!r}")
CLAIMS_TOO_MUCH = Template("{name} claims more bytes than the file has")


# hdf5.py
VALUES_ELSEWHERE = Template("keeps its values in another file, which ringtrain does not read; copy them into this one")
