"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# stored/
ARRAY_TYPE = Template(
    "{where} is of type {dtype}: ringtrain reads whole numbers and floats of up to 64 bits (uint8, int16, float32, …)"
)
ARRAY_SHAPE = Template("{where} has the shape {shape}: the first axis counts the examples, and none of the others is 0")
ARRAY_CUT = Template(
    "{where} is truncated: it needs {nbytes} bytes from byte {offset} on, and the file has {there}; copy it again"
)
ENDED_BEFORE = Template("{where} ends before byte {offset}, where an example lies: it was changed, or the copy is cut")
FILES_DIFFER = Template(
    "{other} has examples of {other_rows}, but {one} of {one_rows}: files of one set have the same type and shape"
)
AND_OTHERS = Template("{first} and {others} others")
COLUMNS_FIRST = Template(
    "{where} is stored column by column (Fortran order), so examples are not in one piece: save"
    " numpy.ascontiguousarray of it"
)
MEMBER_SIZE = Template("{where} has {found} bytes of values, but its shape needs {claimed}: copy it again")

CRC_DIFFERS = Template(
    "{where} changed after it was written: its CRC-32 is {computed:08x}, the archive says {noted:08x}; copy it again"
)

# grammar.py, source.py
NO_MATCH = Template("no file matches {pattern}: check the folder and the pattern")
ARRAY_NAMES = Template("{source}: name one or two arrays after the colon, as in FILE.h5:images,labels")
NPY_PAIR = Template("{source}: inputs and labels are two .npy files: x.npy,y.npy")
NPY_NAMES = Template("{path} is one array without a name: leave out what stands after the colon")
NO_SUCH_ARRAY = Template("{path} has no array {name}; it has {found}")
ARRAY_PROBLEM = Template("{path}: {name} {problem}")
INPUTS_SHAPE = Template("{where} has the shape {shape}: inputs are [N, …] with 1 to 4 axes after N")
LABELS_COUNT = Template("{where}: labels have the shape {shape} for {count} examples of {inputs}: each needs one label")
LABELS_DIFFER = Template("{name}: labels of the training part are {train}, of the test part {test} (shape, type)")
CLASSES_DIFFER = Template("{other} names other classes than {one}: files of one set have the same classes")
SOME_UNLABELLED = Template("{source}: some of the files have labels and some have none")
NOT_FINITE = Template("{where} has values that are not finite (NaN or infinite): remove or replace these examples")
LABELS_CLASSES = Template(
    "{where} has labels in {low} … {high}, but there are {classes} classes: the file was changed after it was opened"
)
NOT_BY_ROWS = Template(
    "{where} is compressed as a whole, so it cannot be streamed: save it with numpy.savez, make a file of it with"
    " `ringtrain data make`, or give --stream no"
)

ARRAYS_LEFT_OUT = Template(
    "{where}: {count} arrays or groups beside inputs and labels were left out: {first}, …; to take others, name them"
    " after a colon"
)

# layout.py
MAKE = Template("make the file with `ringtrain data make`")
MAKE_OR_COPY = Template(MAKE + " or copy it again")
SPLITS_DIFFER = Template("test images are {test}, but training images are {train}")
TYPES_DIFFER = Template("test images are of type {test}, but training images of {train}")
OTHER_FORMAT = Template(
    "the attribute format is {found!r}, not {wanted!r}: this is another kind of HDF5 file; name its arrays, as in"
    " FILE.h5:IMAGES,LABELS, or " + MAKE
)
OTHER_VERSION = Template("it has version {version} of the format; this ringtrain reads version {wanted}: " + MAKE)
ATTRIBUTE_NO_TEXT = Template("the attribute {key} is {found!r}, not a text")
CLASSES_NO_NAMES = Template("the attribute classes is not a list of names: " + MAKE)
NO_GROUP = Template("there is no group {name!r} with images and labels: " + MAKE)
COUNTS_DIFFER = Template("{name} has {images} images but {labels} labels: each image needs one")
SPLIT_EMPTY = Template("{name} has no examples")
NO_CHECKSUM = Template("{name} has no checksum (sha256, 64 hexadecimal digits); it has {found!r}: " + MAKE)
GROUP_EMPTY = Template("the group is empty")
NO_ARRAY = Template("is not an array of this file ({hint})")
NO_VALUES = Template("has no values; it must be [{axes}]")
OTHER_TYPE = Template("is {dtype}; it must be {wanted}: " + MAKE)
OTHER_SHAPE = Template("has the shape {shape}; it must be [{axes}]")
MEAN_IMAGE = Template("mean_image {problem}")
MEAN_IMAGE_SHAPE = Template("mean_image is {found}, but images are {shape}")
STATISTIC_MALFORMED = Template("the attribute {key} is {value}; it must be {channels} finite numbers, one a channel")

# augment.py
CROP_TOO_LARGE = Template(
    "a crop of {height}x{width} does not fit into images of {image_height}x{image_width} padded by {pad}: use "
    "a smaller crop or a larger pad"
)

# check.py
PART_UNREADABLE = Template("{name} could not be read: {reason}")

# cifar.py
CIFAR_SOURCE = Template("CIFAR-10 or CIFAR-100: the folder of the python or binary batches, or its .tar.gz or .tar.xz")
NO_CIFAR_BATCHES = Template("{path} has no CIFAR batches; ringtrain reads these archives: {known}")
CIFAR_FILES_MISSING = Template("{path} has files of {dataset}, but lacks {missing}: copy it again, whole")
CIFAR_NAMES = Template("{path}: {file} has {found} names; {dataset} has {classes} classes")
CIFAR_LABEL = Template(
    "{path}: label {label} of example {example} of {files} is not one of the {classes} classes of {dataset}"
)
CIFAR_DATA = Template("{where}: data is {found}; it must be uint8 (N, {pixels})")
CIFAR_LABELS = Template("{where}: {key} is {dtype} {shape}; it must be {count} integers")
NO_INTEGERS = Template("{where} is not a list of integers")
NO_NAMES = Template("{where}: {key} is not a list of names")
NO_CIFAR_BATCH = Template("{where} is not a CIFAR batch: it has no {missing}")
CIFAR_RECORDS = Template(
    "{where} has {nbytes} bytes, which is not a multiple of {record}, the bytes of a record: it is truncated, "
    "or another format"
)

# content.py
IMAGES_TYPE = Template("{where}: images are {dtype}; they must be uint8, 0 to 255: convert them first")
IMAGES_SHAPE = Template("{where}: images have the shape {shape}; it must be [N, H, W] or [N, H, W, C]")
CHANNELS_FIRST = Template(
    "{where}: images have the shape {shape}, which looks like [N, C, H, W]: move the channels last "
    "(np.moveaxis(x, 1, 3))"
)
LABELS_TYPE = Template("{where}: labels are {dtype}; they must be integers, the number of each class")
LABELS_SHAPE = Template("{where}: labels have the shape {shape} for {count} images; it must be ({count},)")
NO_EXAMPLES = Template("{where}: there are no examples")
LABELS_RANGE = Template(
    "{where}: labels lie in {low} … {high}; they must be class numbers from 0 to {most}, or -1 for no label"
)
OTHER_EXAMPLES = Template("its examples have the checksum {held}…, these have {given}…")
OTHER_FACTS = Template("its class names, mean, std and mean_image have the checksum {held}…, these have {given}…")

# cut.py
TEST_PART_EXISTS = Template("{name} already has a test part of {count} examples: leave out --test-fraction")
FRACTION_LEAVES_NONE = Template(
    "--test-fraction {fraction} of {count} examples leaves none for training or none for testing: give a "
    "number between 0 and 1"
)

# dataset.py
OUT_OF_MEMORY = Template("it takes more memory than there is")
IN_FILE = Template("{path}: {problem}")
DAMAGED = Template("{path} is damaged: {problem}; " + MAKE_OR_COPY)
TEXTS_DAMAGED = Template("the texts at byte {place} are damaged")
TEXTS_ENDLESS = Template("reading its texts, as the names of classes, has no end within {seconds} s")
TOO_LARGE = Template("{path} could not be read: " + OUT_OF_MEMORY)
FOLDER_NO_DATA_SET = Template(
    "{path} is a folder, not a data set: name its files by a pattern in quotes, as in '{path}/*.h5', or " + MAKE
)
NO_DATA_SET = Template("there is no data set {path}: {hint}; or " + MAKE)
NO_REGULAR_FILE = Template("{path} is not a regular file: " + MAKE)
TRUNCATED = Template("{path} is truncated: it ends after {nbytes} bytes; " + MAKE_OR_COPY)
NO_HDF5 = Template("{path} is not an HDF5 file: " + MAKE)
TAR_AS_IT_IS = Template(
    "{path} is a tar file, which training reads as it is, but this command does not: unpack it first"
)
NOT_OPENED = Template("{path} could not be opened: {error}")
NEEDS_MEMORY = Template("{path} needs {gigabytes:.1f} GB of memory, which this host does not have")
NOT_READ = Template("the data set could not be read")
LABELS_OUT_OF_RANGE = Template(
    "{wrong} of {count} {name} labels are out of range: the first is label {label} of example {example}; the "
    "labels lie in {low} … {high}, but there are {classes} classes, so 0 … {last}, or -1 for no label; "
    + MAKE
    + " again"
)
EXAMPLES_CHANGED = Template(
    "the {name} examples changed after they were written: their checksum is {found}…, the file says {noted}…; "
    + MAKE_OR_COPY
)

# decoding.py
DECODING = Template("{what}: {reason}")

# metadata.py
FACTS_CHANGED = Template(
    "the class names, mean, std or mean_image changed after they were written: their checksum is {found}…, the"
    " file says {noted}…; " + MAKE_OR_COPY
)
STATISTIC_OFF = Template("{key} differs by up to {off:.3g} from that of the training images: " + MAKE_OR_COPY)

# folder.py
FOLDER_SOURCE = Template(
    "a folder of images: one subfolder a class, under train/ and test/ (or val/, valid/, validation/) or directly"
)
TWO_FOLDERS = Template("{path} has both {one}/ and {other}/: only one can be the {part} part; move the other away")
TEST_ALONE = Template("{path} has {name}/ with folders of classes, but no train/: name {path}/{name}, or add a train/")
BROKEN_LINK = Template(
    "{folder} has broken links to images ({count}), the first is {first}: bring their files back (`git annex get`), or"
    " remove the links"
)
NOT_PREDICTED = Template("{count} files or folders are no images and were left out: {first}, …")
LEFT_OUT = Template("{count} files or folders are not images of a class and were left out: {first}, …")
UNKNOWN_CLASS = Template("{folder}: the training part has no class of this name; {hint}")
NO_IMAGES = Template("{folder} has no images: remove it, or add some (of {suffixes})")
SIZES_DIFFER = Template(
    "images differ in size: {first} is {first_size} and {second} is {second_size} (height x width): say --size"
    " HxW to give all the same size"
)
GREY_AMONG_COLOUR = Template("{grey} grey images among {count} became RGB")
RESIZED = Template("images were resized to {height}x{width}, without keeping their proportions")

# format.py
TARGET_FOLDER = Template("{path} is a folder: name the .h5 file to write")
TARGET_EXISTS = Template("{path} exists: give another name, or --force to replace it")
TARGET_NO_FOLDER = Template("{path}: there is no folder {folder}: make it first")
TARGET_READ_ONLY = Template("{path}: the folder {folder} is not writable")
TARGET_NOT_WRITTEN = Template("{path} could not be written: {error}")
TARGET_UNREADABLE = Template("{path} is not written, because it could not be opened afterwards: {problem}")

# idx.py
IDX_SOURCE = Template(
    "IDX: a folder or a prefix with train-images-idx3-ubyte, train-labels-idx1-ubyte (and t10k-…), .gz or not"
)
SEVERAL_IDX = Template("{path} has IDX files of several data sets: name one of {known}")
IDX_PAIR = Template("{file} has no {missing} beside it: both {split}-images-… and {split}-labels-… are needed")
NOT_READ_FILE = Template("{path} could not be read")
IDX_HEADER = Template(
    "{path} begins with the bytes {found}; IDX {kind} begin with 00 00 08 0{axes} (unsigned bytes, axes: {axes})"
)
IDX_CUT_HEADER = Template("{path} is truncated: it ends within its header, after {nbytes} bytes")
IDX_LENGTH = Template("{path} is {problem}: its header says {shape} = {count} bytes, and {found} follow")

# images.py
NO_PILLOW = Template(
    "files of images need Pillow 11.3 or newer, which is not installed: pip install --upgrade 'ringtrain[images]'"
)
NO_IMAGE = Template("{file} could not be read as an image")
CHUNK_DIFFERS = Template(
    "{file} changed after it was written: the CRC-32 of its chunk at byte {offset} is {computed:08x}, the file says"
    " {noted:08x}; copy it again"
)
PIXEL_TYPE = Template("{file} has pixels of type {mode}: convert it to 8 bits a channel first")
CHANNELS_OF_FILES = Template("files of images have 1 channel or 3, not {channels}: use arrays, in an HDF5 file")

# make.py
SHAPES_DIFFER = Template("{name}: test images have the shape {test}, training images {train}: they must be the same")
NO_CLASSES = Template(
    "{source}: there are no classes: all labels are -1 (none); give labels from 0, the number of each class"
)
NO_TEXT = Template("{source}: {what} is {text!r}, which is not printable text: give it another name")

# image_files
SHARD_COMPRESSED = Template(
    "{path} is compressed, and a compressed tar is read from its start alone: unpack it to a .tar (gunzip, xz -d, zstd "
    "-d); images are compressed themselves"
)
NO_SHARDS = Template("no file matches {pattern}: check the folder, and put the pattern in quotes")
NO_SHARD = Template("there is no shard {path}: check the folder and the numbers")
SHARD_NUMBERS = Template(
    "{pattern}: a range is {{FIRST..LAST}}, such as {{000..099}}, of at most 1,048,576 numbers that rise"
)
SHARD_DAMAGED = Template("{shard} is no whole tar archive: at byte {offset}: {error}; copy it again")
SHARD_CUT = Template("{shard} is truncated: it ends after {nbytes} bytes without the mark of an end; copy it again")
SHARD_GOES_ON = Template(
    "{shard} has more bytes at {offset}, where its members end: it is damaged, or several archives in one; copy it "
    "again, or make one archive"
)
SHARD_UNREADABLE = Template("{shard} could not be read: {error}")
SHARD_NO_IMAGES = Template("{shard} has no images (of {suffixes})")
MEMBER_AT = Template("{shard}: member {member} at byte {offset}")
MEMBER_HEADER = Template(MEMBER_AT + " has a header that makes no sense: the archive is damaged; copy it again")
MEMBER_NO_FILE = Template(MEMBER_AT + " is a link, a sparse file or no file: write the image itself into the archive")
MEMBER_CUT = Template(MEMBER_AT + " is truncated: the archive ends after {nbytes} bytes; copy it again")
MEMBER_NO_IMAGE = Template(MEMBER_AT + " is no image, by its ending: leave it out of the archive")
NO_LABEL = Template(
    MEMBER_AT + " has no label: give a member {stem}.cls with a class number, or put it under a folder of its class"
)
TWO_LABELS = Template(MEMBER_AT + " is a second label of one stem: keep one")
TWO_IMAGES = Template(MEMBER_AT + " is a second image of the stem {stem}: keep one")
LABEL_ALONE = Template(MEMBER_AT + " is a label without an image of its stem")
LABEL_UNREADABLE = Template(MEMBER_AT + " has no class number: {error}")
LABEL_LARGE = Template("it has more than {most} bytes")
LABEL_ABSENT = Template('it has no "label"')
LABEL_NO_CLASS = Template("{label!r} is not a whole number from 0 to {most}")
SHARDS_DIFFER = Template("{one} has classes as folders, but {other} has labels as numbers: make all shards alike")
CLASSES_UNREADABLE = Template("{file} could not be read as the names of classes: {error}")
CLASS_TWICE = Template("{file} has the class {name!r} twice: keep one")
CLASS_NOT_GIVEN = Template("{shard} has the class {name!r}, which {source} does not have: add it there")
LABEL_NOT_GIVEN = Template("{shard} has the label {label}, but {source} has {count} classes: add the others there")
IMAGES_UNSUMMED = Template(
    "{unsummed} of {count} images hold no checksum (PNG alone does): one that changed and still decodes is not seen"
)
SOURCE_SHARDS = Template("tar shards {path}")
SOURCE_FOLDER = Template("folder of images {path}")
IMAGE_UNREADABLE = Template("{file} could not be read: {error}")
IMAGE_CHANGED = Template("{file} has {found} bytes, but had {size} when it was opened: start the run again")

# named_arrays.py
NO_LABELS = Template("{where} has no labels beside it: name both, as in FILE.h5:x,y or x.npy,y.npy")

# members.py
ARCHIVE_DAMAGED = Template("{path} is truncated or damaged, copy it again")
ENDS_EARLY = Template("it ends before its own size")
MEMBER_TWICE = Template("{path} has two files named {name}: keep one of them")
MEMBER_TOO_LARGE = Template("{path}: {name} has {nbytes} bytes; ringtrain reads at most {most}")

# npz.py
UNDERSTOOD = Template("x_train and y_train (x_test and y_test too), x and y, or images and labels")
NPZ_SOURCE = Template(
    ".npz or HDF5 with the arrays " + UNDERSTOOD + "; FILE.h5:x,y; x.npy,y.npy; a pattern of such files"
)
NPZ_NO_ARCHIVE = Template("{path} could not be read: it is not a whole archive; write it with numpy.savez")
NPZ_PAIR = Template("{path} has only one of {images} and {labels}: give both, or none")
NPZ_ARRAYS = Template("{path} has the arrays {found}; ringtrain reads " + UNDERSTOOD + "; or name them: {path}:x,y")
NPZ_NO_ARRAY = Template("{path}: {name} is not a NumPy array")

# predictions.py
PREDICTIONS_FAILED = Template("{path} could not be written: {error}; make room there")
PREDICTIONS_FOLDER = Template("{path} is a folder; name a file that ends in .jsonl, .csv or .h5")
PREDICTIONS_EXIST = Template("{path} exists already; name another file, or give --force to replace it")
PREDICTIONS_REFUSED = Template("{path} cannot be written: {reason}")
PREDICTIONS_ENDING = Template("{path}: its ending gives the format: name it .jsonl, .csv or .h5")
TOP_ELSEWHERE = Template("{path} gets the probabilities of all classes: leave --top out, or write .jsonl")
PIXELS_IN_TEXT = Template("{path}: a class for each pixel is no line of text: write .h5")
TOO_MUCH_TEXT = Template("{path}: {count:,} numbers an example are too many for text (at most {most:,}): write .h5")

# inputs.py
NO_INPUT = Template("there is no {path}: give image files, folders of them, .npy or .npz files, or data sets (.h5)")
NO_IMAGES_BELOW = Template("{folder} and the folders in it have no images (of {suffixes})")
INPUT_UNREADABLE = Template("{path} could not be read: {reason}")
WHICH_ARRAY = Template("{path} has several arrays ({found}): name the one with the examples {known}")
GIVEN_TYPE = Template("{where}: its values are {dtype}: give uint8, or other numbers")
GIVEN_SHAPE = Template("{where} has the shape {shape}: the training data has [N, {wanted}]; N from 1")

# sampler.py
NOTHING_TO_SAMPLE = Template("cannot sample from {count} examples: at least one is needed")
BATCH_TOO_SMALL = Template("the batch is {batch}: it must be at least 1")
BETWEEN_NO_BATCHES = Template(
    "{examples_seen} examples seen is not between two batches of {batch} in epochs of {count}: the run had "
    "another --batch or another data set; use the same ones"
)

# sources.py
SIZE_NOT_NEEDED = Template("--size is for folders of images; all images of {path} have one size: leave it out")
SOURCE_UNREADABLE = Template("{path} could not be read: {error}")
NO_SOURCE = Template("{path} {problem}:\n{known}")
NONE_OF_THESE = Template("is none of these")
DOES_NOT_EXIST = Template("does not exist; a source is one of")

# synthetic.py
SYNTHETIC_CLASSES = Template("synthetic data in {classes:,} classes: at most {most:,}, as in a data set")
SYNTHETIC_NONE = Template(
    "synthetic data of {count} images of {shape} in {classes} classes: each of these numbers must be at least 1"
)
SYNTHETIC_TOO_LARGE = Template("synthetic data of {shape} takes more memory than there is: use a smaller --batch")


# ── pickles ───────────────────────────────────────────────────────────────────────────────────────────────────
PICKLE_NAMES = Template("{where} is refused: it names {name}, and a pickle of plain values and NumPy arrays does not")


PICKLE_BROKEN = Template("{where} is no pickle of plain values and NumPy arrays: {error}; copy it again")


PICKLE_TAKES_MEMORY = Template("{where} is refused: to unpickle it takes more than {bytes:,} bytes of memory")


PICKLE_ENDS = Template("{where} is refused: the process that unpickles it ended by {signal}, within {seconds} s")
