"""Errors and notes of training that a user sees."""

from ringtrain.template import Template

# assemble
NO_DATA = Template(
    "model {model!r} has no data set of its own: give --data F.h5 (made by `ringtrain data make`), or --synthetic"
)
IMAGES_ON_SOME = Template(
    "{path} is a folder or shards of images on {images}, and not on {others}: give all ranks the same data and folder"
)
OTHER_IMAGES = Template(
    "data set {data!r} has images of {images}, but model {model!r} takes {wanted}: use another data set or model, or "
    "--resize for images of one class number each"
)
RESIZE = Template(
    "--resize {given!r} is neither HxW nor one number of pixels (from 1 to {most}), such as 224x224 or 256"
)
TEST_OTHER_KIND = Template(
    "--data {data} has image files, but --test-data {test} has none: name a folder of images or tar shards there"
)
NO_IMAGE_INPUT = Template("--data has images, but model {model!r} takes {shape}, not height x width x channels")
CROP_SCALE = Template(
    "--random-resized-crop {given!r} is no LEAST:MOST, shares of the image's area from above 0 to 1, such as 0.08:1"
)
JITTER = Template(
    "--colour-jitter {given!r} is no B,C,S,H: brightness, contrast and saturation from 0, hue from 0 to 0.5, such as "
    "0.4,0.4,0.4,0.1"
)
JITTER_NO_COLOURS = Template(
    "--colour-jitter changes RGB images of 8 bits; those of {data!r} are {dtype} {shape}: leave it out"
)
MEAN_OF_OTHER_SIZE = Template(
    "model {model!r} subtracts the mean image, and that of {images} is no mean of images of another size: say "
    '--resize with the size of the model\'s input, or take mean = "channel" in a copy of the model'
)
NO_IMAGE_CLASSES = Template(
    "{option} is for images with one class number each, which {data!r} does not have: leave it out"
)
BATCH_OVER_EXAMPLES = Template("--batch {batch} is more than the {count} training examples; use at most that many")
BATCH_UNDER_SHARDS = Template(
    "--batch {batch} is smaller than the {shards} --shards that --reproducible cuts it into: use a larger batch, or "
    "fewer shards"
)
BATCH_UNDER_RANKS = Template("--batch {batch} is smaller than the {ranks} ranks it is divided among; use a larger one")
BATCH_UNDER_GHOSTS = Template(
    "--batch {batch} is {ghosts} ghost batches of {size}, fewer than the {ranks} ranks: use a batch of at least "
    "{least}, or a smaller --batch-norm ghost:SIZE"
)

# memory_trial
DOES_NOT_FIT = Template(
    "{examples} examples at a time do not fit in the {total} of a rank's device: weights, gradients and optimizer take "
    "{fixed}, and each example {each}"
)
NOT_ONE_FITS = Template("{error}. Not even one example fits beside weights, gradients and the optimizer's state")
SMALLER = Template("{problem}: use smaller images or another model{less}, or more memory")
MORE_SHARDS = Template("{problem}. About {fit} fit: give --shards {shards}, or --batch {batch}{less}")
ACCUMULATE = Template(
    "{problem}. About {fit} fit: give --accumulate {parts}, which computes the same in parts, or --batch {batch}{less}"
)
FEWER_ACTIVATIONS = Template(", or --recompute, which keeps fewer activations")
HALF_PRECISION = Template(", or --precision bfloat16, whose activations take half")

# share_size
ALL_REDUCE_LONGER = Template(
    "a rank's share of {examples} is too small to hide the exchange: the all-reduce of {size} takes {exchange} by the "
    "tuning file, and {passes} {others}. Shares of about {least} take as long: {division}"
)
BLOCKS_LONG = Template(
    "a rank's share of {examples} is too small to hide the exchange: it blocks {blocked} of {whole} in an iteration "
    "(medians of iterations {first} to {last}). Less than {most:.0%} takes shares of {least} or more: {division}"
)
FEWER_RANKS = Template("--batch {batch} on at most {ranks} ranks")
LARGER_BATCH = Template("--batch {batch} on {ranks} ranks")

# run_folder
PUT_ASIDE = Template("put aside, of later iterations or damaged: {names}")
NO_CONFIG = Template("{problem}{alone}; it is called {name} now")
STARTS_ALONE = Template(": this run uses only its own flags and run file")
NO_LOG = Template("{path} is no log of a run: it is called {name} now")

# header
PASSED_OVER = Template("passed over: {problem}")
STREAMED_DATA = Template("examples stay in their files, read ahead of their use; their order: --shuffle {order}")
PRIVATE_DATA = Template("every rank holds the data set itself: this MPI offers no shared memory of that size")
GUARD_GAP = Template("the guard does not see {gap}")
ALGORITHM = Template(" ({algorithm}{rounding})")
ROUNDED = Template(", rounded to {wire} on the wire")
MOMENTUM = Template("momentum {momentum:g}{corrected}")
CORRECTED = Template(" corrected")
ALPHA = Template("alpha {alpha:g}, momentum {momentum:g}")
BETAS = Template("beta1 {beta1:g}, beta2 {beta2:g}")
OPTIMIZER = Template("{optimizer}, {memory}, weight decay {decay:g}")
TRUST = Template(", trust {trust:g}")
TRUST_LIMIT = Template(", trust ratio at most {limit:g}")
EARLY_STOP_WITHOUT_TEST = Template(
    "--early-stop {evaluations} compares evaluations, and data {data} have no test part: leave it out, or make the "
    "data with one"
)
NO_ACCURACY = Template(
    "--best-by accuracy needs a loss that counts correct answers; --loss {loss} does not: use --best-by loss"
)
NO_BETTER = Template("--early-stop: no test {best_by} better than {best:.4f} in {evaluations}")
PLUGIN = Template("plug-in {path}, sha256 {sha256}")
AVERAGED = Template(", weights averaged with decay {decay:g} for evaluations")
CLIPPED = Template(", gradient clipped to {norm:g}")

# reasons, run: stops
STOPPED_BEFORE = Template("stopped {why} before the first iteration; {state}: start it again by the same command")
STOPPED_AFTER = Template(
    "stopped {why} after iteration {iteration}; a checkpoint is in {folder}: go on with --out {folder} --resume auto"
)
TO_RANK = Template("{why} to rank {rank}")
BY_SIGNAL = Template("by {signal}")
BEFORE_JOB_END = Template("{seconds:.0f} s before the end of the job")
NO_JOB_END = Template(
    "--stop-before-s {seconds:g}: no end of a job is known here: export RINGTRAIN_JOB_END=$(($(date +%s) + SECONDS)) "
    "at the top of the job's script"
)
JOB_END = Template("the job ends at {time:%Y-%m-%d %H:%M:%S %Z}; this run stops {seconds:.0f} s before that")

# recovery_state
ELASTIC_COMPARED = Template("--elastic {elastic}: runs of a comparison must be alike: leave --elastic out")
NOT_ELASTIC = Template("--elastic {elastic}: {why}; or leave --elastic out")

# load
NO_LABELS = Template("no example of that part of data set {data!r} has a label")
NO_PART = Template("data set {data!r} has no {part} part; it has {parts}: choose with --split")
THE_MODEL = Template("the model in the checkpoint")
WRONG_FACTS = Template(
    "checkpoint {path}: the mean, std, mean_image or shape of its training data do not fit the input of model "
    "{model!r}: it was changed; use another one"
)

# model.py
THE_ARRAY = Template("the array")

# predict.py
NO_IMAGE_TO_PREDICT = Template("model {model!r} takes {wanted}, which no image file gives: give arrays (.npy, .npz)")

# divergence, run, records: values that are not finite
LOSS = Template(
    "the loss is {loss:g} at iteration {iteration}: {where}. Lower --lr, add --warmup or --clip-norm, and go on from "
    "an earlier checkpoint with --resume"
)
WRONG_LABEL = Template(
    "the label of example {example:,} is {value}, for which --loss {loss} is not defined: no network can learn it; "
    "correct the data set, or leave the example out"
)
WRONG_INPUT = Template(
    "the input of example {example:,} has the value {value}: no network can learn it; correct the data set, or leave "
    "the example out"
)
ALL_FINITE = Template("every layer's output is finite, so the loss itself overflowed")
FIRST_LAYER = Template("the first layer with a non-finite value is {layer!r} (on rank {rank}){cause}")
ITS_CAUSE = Template(", {cause}")
TEST_LOSS = Template("the test loss is {loss:g}")
DIVERGED = Template(
    "{what} after iteration {iteration}; this state is not saved. Lower --lr, add --warmup or --clip-norm, and go on "
    "from an earlier checkpoint with --resume"
)
DATA_WAITS = Template(
    "rank {rank} waited {share:.0%} of the time for its examples: the loader is the limit. It is faster with more "
    "cores a rank, smaller files or uint8 arrays: docs/slow.md, How fast must the loader be?"
)
FASTER_ALGORITHM = Template(
    "the exchange blocked {share:.0%} of the training. As the run ended, an all-reduce of {size} took {seconds} by "
    "{algorithm}, and {other_seconds} by {other}, whose sums may round otherwise: --algorithm {other} may be faster"
)
SKIPPED = Template(
    "{updates} left out by iteration {iteration:,}: the gradient was not finite; the loss is scaled by {factor:g} from "
    "here on"
)

# fc_stage
AWAITED_MESSAGE = Template("{ranks} to send {message}")
AWAITED_ACTIVATIONS = Template("{ranks} to send activations")
AWAITED_CHOICE = Template("rank {rank} to name the next micro-batch")

# batch_norm
NO_BATCH_NORM = Template(
    "--batch-norm {given} is for networks with batch normalisation, and model {model!r} has none: leave it out"
)
UNKNOWN_BATCH_NORM = Template("batch_norm is {given!r}; {hint}")
BATCH_NORM = Template(
    "batch_norm is {given!r}; it wants {model}, {sync}, or ghost:SIZE with a whole number of examples of at least 1"
)
WHOLE_BATCH = Template("batch normalisation by statistics of the whole batch, summed over ranks in every layer")
GHOST_BATCHES = Template("batch normalisation by ghost batches of {size}")
GHOSTS_AND_SHARDS = Template(
    "ghost batches of batch normalisation end with a shard: of {shards} examples here, where {size} were asked for. "
    "{advice}"
)
WHOLE_GHOSTS = Template("--shards {shards} would hold whole ones, on as many ranks at most")
NO_WHOLE_GHOSTS = Template("No --shards holds whole ones of --batch {batch}, which is no multiple of that")

# open_run
WITHOUT_PLAN = Template("without --plan from here on: {error}")
WITHOUT_TUNING = Template("without --tuning from here on: {error}")

# recipe
STEP_AT = Template("{policy} at {steps}")
FLOOR = Template("at least {floor:g}")
STEP_EVERY = Template("{policy} every {steps}")
WARMUP = Template("warm-up {span}")
EPOCH_SPAN = Template("{count} epoch = {iterations}")
EPOCHS_SPAN = Template("{count} epochs = {iterations}")
SHORT_OF_WARMUP = Template(
    "the run is over before its warm-up of {span}: it has {length}, and its rate comes to {reached:.3g} of {lr:g}. "
    "Give a shorter --warmup, or 0"
)
STEPS_UNUSED = Template("--lr-steps changes nothing: it is of --lr-policy {owners}, and this is {policy}")
STEPS_BEYOND = Template("--lr-steps {steps}: the rate does not drop there, as the run has {length}")
FEW_MICRO_BATCHES = Template(
    "--accumulate {accumulate}: a rank has {examples} of a batch{ghosts}, which make {count} and no more"
)
IN_GHOSTS = Template(" in ghost batches of {size}")
LONG_WARMUP = Template(
    "{asked}: a warm-up of {warmup} lasts as long as the run or longer, which has {total:,} ({length}): the rate would "
    "not come to {lr:g}. Give a shorter warm-up, or a longer run"
)
WARMUP_FLAG = Template("--warmup {warmup}")
WARMUP_KEY = Template("{source}: warmup is {warmup!r}")

# recipe: the length of a run, as a flag
EPOCHS = Template("--epochs {epochs}")
ITERATIONS = Template("--iterations {iterations}")

# replica_check
AT_START = Template("at the start")
AFTER_ITERATION = Template("after iteration {iteration}")
DIFFERING = Template(
    "replicas differ {when}: {who}. The first difference is in {what} of {span!r}, elements {first} to {last} of "
    "{count}; at {index} there is {values}. Every rank made the same updates, so memory, the network or a processor of "
    "another kind is at fault: check that node. This state is not saved; go on from an earlier checkpoint with --resume"
)
OF_THE_OPTIMIZER = Template("the optimizer's {name}")
ONE_HAS = Template("{wrong} has other bits than {most}")
SEVERAL_HAVE = Template("{wrong} have other bits than {most}")
ONE_AGREES = Template("{differing}, which agrees")
SEVERAL_AGREE = Template("{differing}, which agree")
UNDECIDED = Template("{differing}; two groups are equally large, so ringtrain cannot tell which of them is right")
VALUE_ON = Template("{value} on {ranks}")
NOT_FINITE = Template(
    "{what} not finite, {span!r} first {when}, on {ranks}{cause}; this state is not saved. Lower --lr, add --warmup or "
    "--clip-norm, and go on from an earlier checkpoint with --resume"
)
WEIGHTS_ARE = Template("weights are")
STATE_IS = Template("the optimizer's {name} is")
GRADIENT_TOO = Template("; the last gradient is not finite either, {span!r} first")

# reproducible
OTHER_KERNELS = Template(
    "--reproducible wants the same kernels on every rank, and there are {kernels}: install one ringtrain everywhere; "
    "where a CPU has no fused multiply-adds, let all do without (mpirun -x RINGTRAIN_CPU_FAMILY=x86-64-v2)"
)
REPRODUCIBLE = Template("the same weights bit by bit on 1 to {shards} ranks: {shards} shards, {kernels}")
MOVED = Template(
    "the checkpoint was computed by {former}, and this is {kernels}: from here on the bits are not those of a run that "
    "stayed there"
)

# resume
NO_CHECKPOINT = Template("there is no checkpoint of it yet")
CHECKPOINT_UNCHANGED = Template("its checkpoint of iteration {iteration} is as it was")
TRACE_IN_RUN_FILE = Template(
    "run file {run_file}: trace is {trace!r}; it wants a bare name, of a file of its own in the run folder. --trace "
    "alone may name any file"
)
AUTO_WITHOUT_OUT = Template("--resume auto looks for a checkpoint in the run folder: name it with --out")
NOTHING_TO_BEGIN_AT = Template("{folder} has no checkpoint yet, and is to begin at {source}: {error}")
NOT_A_CONFIG = Template("{path} is not what a run writes ({why})")
FORMER_RUN = Template("the run that goes on")
OTHER_MODEL = Template(
    "the checkpoint is of another model than {source!r}: its {model!r} has other layers or another input. Leave "
    "--model out to go on with the checkpoint's, or start a new run"
)
FIXED = Template(
    "the run that goes on has {key} = {before!r}, not {now!r}: its examples, its optimizer's state or its best "
    "checkpoint depend on that, so leave it out; to change it, start a new run"
)
FIXED_BITS = Template(
    "the run that goes on is reproducible, and has {key} = {before!r}, not {now!r}: the bits of its products depend on "
    "that, so leave it out; to change it, start a new run"
)
FINISHED_MORE = Template(
    "the run that goes on has finished {finished} iterations, more than the {iterations} of {given}: give the number "
    "in all, or an earlier checkpoint"
)
OTHER_DATA = Template(
    "the checkpoint was trained on other data: {before!r}, and here is {now!r}: {difference}; give that --data"
)
OTHER_POSITION = Template(
    "the checkpoint says iteration {iteration:,}, but {seen:,} examples seen, which is another iteration with batches "
    "of {batch}: the file was changed; give another"
)

INIT_AND_RESUME = Template(
    "--init {init} begins a run, and --resume {resume} goes on with one, whose weights it has: leave one of them out"
)

# initial_weights, header
INIT_UNUSED = Template("--init {init} is not used: the run goes on from its checkpoint, and has its weights")
FROZEN = Template(
    "--freeze {patterns}: {frozen} of {total} parameters are not trained, {numbers:,} of {all_numbers:,} numbers"
)

# memory_check
NO_ROOM = Template(
    "the network's {what} take {each} on each rank, and there are {there} {of}: most is {largest}, {shape}; make that "
    "smaller, or take another model"
)
WEIGHTS = Template("weights")
WEIGHTS_AND_GRADIENTS = Template("weights and gradients")
OF_DEVICE = Template("of its device's memory")
OF_HOST = Template("of memory on its host, for {ranks}")

# saving
FROM_THE_MEAN = Template(
    "the checkpoint has {names} of each of its {before}, for as many of the same strategy and optimizer; here {now} "
    "begin alike, from the mean (of residuals from the sum)"
)
NOT_SAVED = Template(
    "no checkpoint of iteration {iteration:,}: {error}. The run goes on; it ends if {left} more cannot be saved"
)

# slow_rank
NOT_TRAINING = Template(
    "--inject-slowdown {slow} slows rank {rank}, and the examples are on {ranks}: name one of those"
)
SLOW = Template("--inject-slowdown is {slow!r}; it wants RANK:TIMES, with 1 to 1000 times, such as 1:2")

# start
NO_CURVES = Template("note: no curves: {problem}")
CURVES = Template("curves {path}")
SECOND_CTRL_C = Template("a second Ctrl-C")
HUNG_UP = Template("SIGHUP: the terminal was closed")

# agree
FILE_PROBLEM = Template("{path}: {problem}")
NO_MEMORY = Template("this takes more memory than there is ({error}): use a smaller network or batch")
DISAGREE = Template("the ranks do not agree on the run:\n{differences}")
DIFFERENCE = Template("  {key}: {values}")
ON_RANKS = Template("{ranks}: {text}")

# tracing
TRACE_TO_FOLDER = Template("--trace is {trace!r}, a folder; it wants a file, a bare name of one in the run folder")
TRACE_ITERATIONS = Template("--trace-iterations is {given!r}; it wants FIRST:LAST, counted from 1, as in 100:102")
TRACE_TOO_EARLY = Template("--trace-iterations {given} begins in iteration {first}, and this run after {begun}")
TRACE_UNWRITTEN = Template("the trace could not be written to {path} ({error})")
TRACE_WRITTEN = Template("the trace is in {path}: open it at https://ui.perfetto.dev")
NOTHING_TRACED = Template(
    "nothing was traced: the run ended before iteration {iteration}, the first that was asked for"
)

# variants
IN_VARIANT = Template("variant {name!r}: {error}")
ENDED_VARIANT = Template("{error}\nThis ended variant {name!r}, and those after it are not run")
