"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# lock.py
OWNER = Template("process {process} on {host}, since {since}")
BY_OWNER = Template("by {owner}")
BY_ANOTHER = Template("by another process")
IN_USE = Template(
    "run folder {folder} is in use {who}: only one run at a time can write there. Wait for its end, or end it;"
    " or name another folder with --out"
)
NO_LOCKS = Template("{folder} is on a file system without locks: only a second run on this host would be seen")

# outcome.py
LOST = Template(", {count} lost on the way")
OUTCOME = Template("{outcome}: iteration {iteration:,} of {iterations:,}, {ranks}{lost}")
EXIT_CODE = Template(", exit code {exit_code}")
NO_OUTCOME = Template(
    "{path}: {reason}; give the folder of a run of this version, which holds this file from its start"
)
OUTCOME_MALFORMED = Template("{path} is not the outcome of a run: {error}; it was changed, or another program wrote it")
NO_JSON_OBJECT = Template("it is not a JSON object")
OUTCOME_FIELD = Template("{key} {value!r}")

# reader.py
NAME_NOT_PRINTABLE = Template("its {name} is not printable text: {found!r}")
VALUE_WRONG = Template("its contents are not those of a checkpoint: {name} is {value!r}")
NO_GROUP = Template("{name} is not a group")
VALUES_CHANGED = Template("the values of {name} do not match their sha256")
MEMBER_MISSING = Template("{group}/{name} is missing, or is a link to elsewhere")
NO_NUMBERS = Template("{name} is not an array of numbers")
NO_SHAPE = Template("{name} has no shape")
NOT_CONTIGUOUS = Template("the values of {name} are not contiguous in this file")
CLAIMS_TOO_MUCH = Template("{name} claims more bytes than the file has")

# run_folder.py
MOVED_ASIDE = Template("{path} is not a regular file of this folder: it is now called {name}")
KEEP_TOO_FEW = Template("keep {keep}: a run keeps at least its newest checkpoint; give 1 or more")
FILE_IN_THE_WAY = Template("run folder {folder}: {file} is a file, but must be a folder; name another with --out")
NOT_FOUND = Template("{path} does not exist: give a checkpoint's file or a run's folder{beside}")
HOLDS_A_RUN = Template(
    "run folder {folder} already holds a run ({held}); continue it with --resume auto, or name another folder "
    "with --out"
)
NONE_IS_GOOD = Template("no checkpoint of {folder} is good: {reasons}")
NO_CHECKPOINT = Template("{folder} holds no checkpoint: give a run's folder or a checkpoint's file{beside}")
RENAMED = Template(
    "checkpoint {path} is of iteration {iteration}, but its name gives another: the file was renamed; name it "
    "itself to continue from it"
)
BESIDE = Template(" (beside it: {runs})")

# seal.py
OTHER_LENGTH = Template("{found:,} bytes long, but {written:,} were written")
BYTES_CHANGED = Template("its bytes changed after they were written: they do not match its sha256")
DAMAGED = Template("checkpoint {path} is damaged: {problem}; use another one (--resume auto takes the newest good one)")
TOO_SHORT = Template("only {nbytes} bytes long")
NO_CHECKPOINT_FILE = Template(
    "{path} is not a checkpoint of ringtrain: it does not begin with {magic!r}; give a file of a run's "
    "checkpoints folder, or the run's folder"
)
FIRST_LINE = Template("its first line is not one that ringtrain writes")
OTHER_VERSION = Template(
    "checkpoint {path} has format version {version}; this ringtrain reads version {wanted}: use the ringtrain "
    "that wrote it"
)

# store.py
UNREADABLE = Template("checkpoint {path} cannot be read ({reason}); give another one")
MALFORMED = Template("its contents are not those of a checkpoint ({error})")
OTHER_FINGERPRINT = Template("its fingerprint is not that of its weights")
SHAPES_DIFFER = Template("{name}: {held} in the checkpoint, {wanted} in the model")
AND_MORE = Template("; and {count} more")
OTHER_MODEL = Template(
    "checkpoint {source} is of another model, {model!r}: {differing}{more}; give the model of the checkpoint, "
    "or another checkpoint"
)
OTHER_SLOTS = Template(
    "checkpoint {source} has an optimizer slot {slot!r} for other parameters than its weights: it was changed;"
    " use another one"
)
NO_SCALAR = Template("checkpoint {source} has no finite number {name}: it was changed; use another one")


# files.py
NO_REGULAR_FILE = Template("Not a regular file")
IS_A_LINK = Template("A link, and none is followed in the folder of a run")
LINKED_FOLDER = Template(
    "{path} is a link to {target}: a run writes in its own folder alone, and follows no link there; "
    "put a folder in its place, or name another run folder than {folder}"
)


WRITING_REFUSED = Template("{path}: writing is not allowed ({reason}); name another with --out")


NO_NEW_FILES = Template("{path}: {folder} takes no new files ({reason}); name another with --out")


NO_FOLDER = Template("{path}: {folder} is missing, or is not a folder; name another with --out")


NAME_REFUSED = Template("{path}: {reason}; name another with --out")


NO_ROOM = Template("no room")


DISK_FAILED = Template("the disk failed")


NOT_WRITTEN = Template(
    "{path}: {problem} for {nbytes:,} bytes ({reason}); earlier files are kept: make room, then run it again; a "
    "training goes on from its last checkpoint with --resume auto"
)


# hdf5.py
VALUES_ELSEWHERE = Template("keeps its values in another file, which ringtrain does not read; copy them into this one")


FILTER_NEEDS_CODE = Template(
    "was written with the filter {code}, which needs code from elsewhere: write it with gzip or none"
)


STORED_LESS = Template("claims {claimed:,} bytes, but {stored:,} are stored")


CHUNKS_TOO_LARGE = Template("has chunks of {elements:,} elements, more than the array has")
