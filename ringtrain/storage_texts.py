"""The errors and notes that a user sees of files and of HDF5, each with named fields."""

from ringtrain.template import Template

# files.py
NO_REGULAR_FILE = Template("Not a regular file")
WRITING_REFUSED = Template("{path}: writing is not allowed ({reason}); name another with --out")
NO_NEW_FILES = Template("{path}: {folder} takes no new files ({reason}); name another with --out")
NO_FOLDER = Template("{path}: {folder} is missing, or is not a folder; name another with --out")
NAME_REFUSED = Template("{path}: {reason}; name another with --out")
NO_ROOM = Template("no room")
DISK_FAILED = Template("the disk failed")
NOT_WRITTEN = Template(
    "{path}: {problem} for {nbytes:,} bytes ({reason}); earlier files are kept: make room, then continue from "
    "the last checkpoint with --resume auto"
)

# hdf5.py
VALUES_ELSEWHERE = Template("keeps its values in another file, which ringtrain does not read; copy them into this one")
FILTER_NEEDS_CODE = Template(
    "was written with the filter {code}, which needs code from elsewhere: write it with gzip or none"
)
STORED_LESS = Template("claims {claimed:,} bytes, but {stored:,} are stored")
CHUNKS_TOO_LARGE = Template("has chunks of {elements:,} elements, more than the array has")
