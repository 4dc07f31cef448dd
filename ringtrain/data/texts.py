"""The errors and notes that a user sees of this room, each with named fields."""

ENDED_BEFORE = "{where} ends before byte {offset}, where an example lies: it was changed, or the copy is cut"
NOT_FINITE = "{where} has values that are not finite (NaN or infinite){which}: remove or replace these examples"
NO_ARRAY = "is not an array of this file, nor a link to one within it ({hint})"
NO_MATCH = "no file matches {text}: check the folder and the pattern"
NO_EXAMPLES = "{where}: there are no examples"
LABELS_RANGE = (
    "{where}: labels lie in {low} … {high}; they must be class numbers from 0 to {most}, or -1 for no label (or N, "
    "with --ignore-label N)"
)
OUT_OF_MEMORY = "it takes more memory than there is"
TOO_LARGE = "{path} could not be read: " + OUT_OF_MEMORY
NOT_READ_FILE = "{path} could not be read"
NO_IMAGE = "{file} could not be read as an image"
SHAPES_DIFFER = "{name}: test images have the shape {test}, training images {train}: they must be the same"
NPZ_NO_ARCHIVE = "{path} could not be read: it is not a whole archive; write it with numpy.savez"
SOURCE_UNREADABLE = "{path} could not be read: {error}"
