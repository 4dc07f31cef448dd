"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# bench_allreduce.py
GUARD_ON_DEVICE = Template("--check-collectives works in host memory alone: leave it out with --device cuda")
NO_SUCH_RANK = Template("--skew delays rank {rank}, but the ranks are 0 to {last}")
NO_NUMBER = Template("{flag} {value}: wanted a number")
NCCL_ON_HOST = Template("{nccl} reduces device memory: give --device cuda, or leave {nccl} out")
TUNING_WITHOUT_AUTO = Template("--tuning {path} is for auto: name auto in --algorithm, or leave --tuning out")
SIZES_OF = Template("--sizes-of takes the sizes from a model: leave out -b, -e and -f")
ROWS_NOT_WRITTEN = Template("ringtrain: the rows so far are not in their files: {error}")

# compare.py
NOTHING_TO_COMPARE = Template("nothing to compare: give folders of runs, or --sync A,B with training options after --")
NO_RUN_FOLDER = Template("{folder} is not the folder of a run: training options need --sync or --variant")
OUT_WITHOUT_VARIANTS = Template(
    "--out {out} is the folder for trained variants: give --sync or --variant, or leave it out"
)
SEEDS_WITHOUT_VARIANTS = Template(
    "--seeds {seeds} trains variants: give --sync or --variant; --over-seeds averages runs that exist"
)
OVER_SEEDS_OF_VARIANTS = Template("--over-seeds averages runs that exist: --seeds K trains variants over seeds")
NO_SEEDS = Template("--over-seeds: no two of these runs differ by seed alone")
VARIANT_EXISTS = Template("{folder} exists already: name another folder with --out, or compare the runs in {out}")
VARIANT = Template("\n== variant {number} of {count}: {name}")
VARIANT_FAILED = Template("ringtrain: variant {name!r}: {text}")
NOT_RUN = Template("not run: {names}")
NO_PICTURE = Template("note: no picture: {error}")
PICTURE = Template("the picture is in {path}")

# scale.py
SCALE_COUNTS = Template("-n {counts}: scaling wants two numbers of ranks or more, as -n 1,2,4")
SCALE_COMMAND = Template("scale measures `train` with options after --: ringtrain scale -n 1,2 -- train; got {given}")
SCALE_OUT = Template("scale names the folders of the runs, and each begins anew: leave {flag} out after --")
SCALE_FOLDER = Template("--out {out} cannot be made: {error}; name a new folder")
SCALE_RUN = Template("round {round} of {rounds}  {name:<14} batch {batch:<8} ")
SCALE_RATE = Template("{images_per_s:,.0f} images/s")
SCALE_NOTHING = Template("no figure")
SCALE_FAILED = Template("{name} ended with status {status} and is not tried again; all it said is in {output}:\n{told}")
SCALE_OTHER_RANKS = Template(
    "its log is of ranks: {ranks}; the launcher starts another number, or an MPI of another kind"
)
SCALE_ENDED = Template("told to end: the figures of the runs before are in {folder}/scale.json, if there were any")

# data.py
NO_SIZE = Template("{value!r} is not a height and a width: write it as in 32x48, or 32 for 32x32")
MADE = Template("{out}: {name}, {parts} examples in {classes} classes")
PROBLEMS = Template("{file} has {count}:\n{problems}")
GOOD = Template("{file} is good")
NO_CHECKSUM = Template(
    "{array} holds no checksum: values that changed would not be seen; `ringtrain data make` writes a file that has one"
)

# devices.py
DEVICE_LINE = Template("# {text}")
NOT_MAPPED = Template("{choice}; ranks of a node do not map each other's buffers: {why}")

# doctor.py
DOCTOR_STUCK = Template("ringtrain doctor: rank {rank} on {host}: {words}")

# evaluate.py
SCORE = Template(
    "{path} (model {model}, iteration {iteration:,})\n{split} loss {loss:.4f}{others} of {count}{averaged}"
)
AVERAGED = ", weights averaged (--ema)"
EXAMPLES, ELEMENTS = Template("{count:,} examples"), Template("{count:,} labelled elements of {examples:,} examples")
METRIC = Template(", {name} {value}")
PERCENT = Template("{percent:.2f} %")
NOT_BY_CLASS = Template("--{flag} is for --loss ce and bce, and this run has --loss {loss}: leave --{flag} out")
NOT_CONFUSED = Template(
    "--confusion wants classes that exclude one another, {most:,} at the most, and this run has {count:,} classes of "
    "--loss {loss}: give --per-class"
)
MATRIX_HEAD = Template("label \\ predicted")
METRICS_ENDING = Template("{path}: metrics are written as .json or .csv")
METRICS_WRITTEN = Template("{path} has all metrics")
METRICS_EXIST = Template("{path} exists: give another name, or --force")

# export.py
EXPORTED = Template("{out}: {tensors} tensors of {path} (model {model}, iteration {iteration:,}){averaged}")

# hints.py
UNKNOWN_COMMAND = Template("no command {name!r}; {hint}")
USAGE = Template("{text}\n{usage}\nTry '{command} --help' for help.")
UNKNOWN_OPTION = Template("No such option '{asked}': {hint}")
USE = Template("use {option}")
RANKS = Template("mpirun starts the ranks: mpirun -np 2 ringtrain {command}")

# main.py
EMPTY = Template("{argument} is empty: {why}")

# models.py
FILE_EXISTS = Template("{path} is there already: give another -o, or --force to replace it")
COPIED = Template("{path}: train it by --model {path}")

# options.py
NO_INTEGERS = Template("{value!r} is not a list of integers like 4000,5000")
NO_ITERATIONS = Template("{value!r} is neither a number of iterations like 400 nor of epochs like 5ep")

# output.py
OUTPUT_FAILED = Template("standard output cannot be written: {reason}")

# plan.py
LAYERS_OF_ANOTHER = Template(
    "{path} has the layers of {found}, not of {model}: measure them by `ringtrain time {model} --json`"
)
NOT_PLANNED = Template("--sync {name}: plans are of {known}{hint}")
RANKS_FROM_ONE = Template("-n {ranks}: ranks are counted from 1")

# predict.py
ACCURACY = Template(", accuracy {percent:.2f} %")
PREDICTED = Template("{out}: {examples:,} examples{accuracy}{averaged}")
ON_SCREEN = Template("standard output")
INPUT_AND_DATA = Template("--data {data} stands in place of inputs: leave it out, or name it as an input")
BAD_INPUTS = Template("{bad:,} of {examples:,} could not be read and have an error in place of a prediction: {first}")

# progress.py
PROGRESS = Template("# {what}: {done} of {total} done")

# report.py
REPORTED = Template("{out}: {runs}, {size:.2f} MB")
REPORT_ENDING = Template("--out {out}: a report is one of {endings}")
REPORT_EXISTS = Template("{out} exists: give another --out, or --force")
METRICS_OF_ONE = Template(
    "--metrics is for one run, and these are {count}: leave it out, and metrics.json of each run folder is taken"
)

# runs.py
CHOSEN = Template("{count} of {runs} in {folder}")
NO_RUNS = Template("there is no run in {folder}")
ONE_ON_SCREEN = Template("standard output takes one of --json and --csv: give the other a file")
LOG_ALONE = Template("--log writes one run: leave out --where, --sort, --json and --csv")
LOG_WRITTEN = Template("{path}: {iterations}")

# schedule.py
AT_MOST = Template("at most, of 8 ranks on 2 nodes; n is the buffer. Any pair: hierarchical:INNER:OUTER")
SHOWING_ALL = Template("showing all ranks")
NAME_ONE = Template("name one with --rank")
NO_RANK = Template("--rank {rank}: the ranks are 0 to {last}")
SENDS = Template("rank {rank}: sends at most {sent} chunks; the buffer has {chunks}")
SHOWN = Template("{schedule}: {goal}")
STEP = Template("  {number:3}  {step}")
A_PROOF = Template("a proof")
PROVE_FEWER = Template("prove it for fewer")
PROVED = Template("{schedule} is proved: {goal}{over}")
OVER_ROUNDED = Template(", over messages that are rounded")
PROVED_SHARDS = Template("shards             {shards}, added in one tree{where}")
PROVED_COUNTS = Template(
    "rounds             {rounds}\nmessages a rank    {messages}\nbytes a rank       {sent} of the buffer"
)
BOTH_WAYS = Template(", by messages and in memory that the ranks share")
A_PREDICTION = Template("a prediction")
PREDICT_FEWER = Template("predict for fewer")
NEGATIVE_BYTES = Template("--bytes {nbytes}: wanted 0 or more")
ON_NODES = Template("{schedule} on nodes of {counts} ranks")
A_DRAWING = Template("a drawing")
DRAW_FEWER = Template("draw fewer")
DRAWN = Template("{schedule} is drawn in {output}")
SHARDS_NOT_HERE = Template("--shards {shards} is for {canonical} and for `ringtrain schedule verify`: leave it out")
PIPELINING = Template("pipelining here")
NO_PIECES = Template("leave --pieces out")
WHOLE_GRADIENTS = Template("{canonical!r} adds whole gradients, all of them: leave {option} out")
SHARDS_NOT_ROUNDED = Template("--shards {shards} adds gradients without rounding: leave --rounded out")
TOO_MANY_RANKS = Template("{ranks} ranks are too many for {what}: at most {most}; {instead}")
NO_RATE = Template("{flag} {rate:g}: wanted a rate above 0")

# slurm.py
SCRIPT_WRITTEN = Template("{output} is written: submit it with sbatch {output}")
SCRIPT_EXISTS = Template("{path} exists already: name another with --output, or replace it with --force")
NO_GPUS = Template("--device cuda, but the job asks for no GPUs: give --gpus, the number of a node")
ELASTIC_BY_SRUN = Template("--elastic needs Open MPI's mpirun, but --launcher is srun: leave one of them out")
NO_DATA_SET = Template("model {model!r} has no data set of its own: give --data F.h5, or --synthetic")
GPUS_UNUSED = Template("the job asks for GPUs, but the run does not use them: add --device cuda")
NOT_HERE = Template("there is no {path} here: make sure that the nodes have it")
ELASTIC_NEEDS = Template("--elastic: `mpirun --with-ft ulfm` starts the ranks, which needs Open MPI 5 on the nodes")

# time.py
BATCH_TOO_SMALL = Template("--batch {batch} is smaller than the number of ranks, {ranks}; use a larger one")
CROWDED = Template("; {crowded}: times include the scheduler's")
HEADER = Template("ringtrain {version} time {model}: {images} on {ranks}, {dtype}, {ops}, {device}")
HEADER_PROTOCOL = Template("medians of {timed} after {first}; cores by rank: {binding}{crowded}")

# tune.py
TUNED = Template("written to {path}")
TUNES_AUTO = Template("this command tunes auto: name the candidates that it chooses among, or all")
ONE_RANK = Template("one rank has nothing to exchange: start it as `mpirun -np 4 ringtrain tune`")
NO_TUNING_FOLDER = Template("{path} cannot be written: there is no folder {folder}")
TUNING_READ_ONLY = Template("{path} cannot be written: it is a folder, or its folder is not writable")
TUNING = Template("tuning {layout} (layout {name}) of machine {machine}: {facts}")
TUNING_FILE = Template("{path}: machine {machine}, {facts}")
TUNED_LAYOUT = Template("layout {name}, measured {at}")

# values.py
NO_SHARE = Template("{value!r} is not a share: write it as 5% or 0.05")
NO_RANK_VALUE = Template(
    "{value!r} is not a rank and its {what}, above {above:g} and at most {most:g}: write it as {example}"
)

# variants.py
VARIANT_TWICE = Template("variant {name!r} is there twice: give one of them other options or another name")
VARIANT_NO_NAME = Template('--variant {variant!r} has no name: write it as "large: --batch 256 --lr 0.1"')
VARIANT_NO_OPTIONS = Template("variant {name!r}: {options!r} is not a list of options ({error})")
VARIANT_EMPTY = Template("--variant {name!r} has no options")
SYNC_EMPTY = Template("--sync has nothing before or after a comma")
NOTHING_TO_TRAIN = Template("{where}: leave it out, or add options")
VARIANT_OPTION = Template("variant {name!r}: {error}")
VARIANT_SEED = Template("{name}, seed {seed}")
VARIANT_OUT = Template("variant {name!r}: compare names the folders, not --out {out}: put --out before the --")

# world.py
STARTING = Template("starting the MPI and finding the other ranks")
FROM_RANK = Template("ringtrain: rank {rank}: {text}")
FROM = Template("ringtrain: {text}")
NOTE = Template("note: {note}")
RANK_FAILED = Template("ringtrain: rank {rank} failed:\n{traceback}")
SKIPPED = Template("ringtrain: passed over: {reason}")

# python_script
NO_SCRIPT = Template(
    "there is no script to run: python -m ringtrain.torch script.py, or -m module; --help shows the options"
)
