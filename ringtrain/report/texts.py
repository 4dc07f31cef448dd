"""Lines, notes and errors of what a run shows, and of comparisons."""

from ringtrain.template import Template

# words: the header
VERSION = Template("ringtrain {version}")
FACT = Template("  {name:<10} {text}")
MODEL = Template("{model}, {parameters:,} parameters, {dtype}{precision}")
PRECISION = Template(", computed in {precision}")
DATA = Template("{data}, {train:,} examples to train on, {tested}")
TESTED = Template("{count:,} to test with")
UNTESTED = Template("none to test with")
RANKS = Template("{ranks} on {nodes}{hosts}, each on {device}")
HOSTS = Template(" ({names})")
STRATEGY = Template("{strategy}, {exactness}")
EXACT = Template("exact: equal to training on one rank")
NOT_EXACT = Template("not exact: differs from training on one rank")
BATCH = Template("{batch:,} over all ranks, {iterations} an epoch")
RATE = Template("{lr:g}, {schedule}")
LENGTH = Template("{epochs}{iterations}{resumed}")
EPOCHS = Template("{epochs}, ")
RESUMED = Template(", resumed after iteration {iteration:,}")
NO_FOLDER = Template("none: nothing is kept")
PREDICTED = Template(
    "{step_ms:.2f} ms an iteration, {images_per_s:,.0f} images/s, {exposed_ms:.2f} ms exposed; {strategy}{algorithm}"
)
PREDICTED_ALGORITHM = Template(" ({algorithm})")
PREPARING = Template("preparing the first iteration")

# words: while it runs
NOTE = Template("note: {text}")
LOADED = Template("kernels loaded from the cache in {seconds:.1f} s")
COMPILED = Template("{kernels} compiled in {seconds:.1f} s, kept for the next run")
LOST = Template("lost {lost}: {ranks}{replaced}, on after iteration {iteration:,} {source}; it took {seconds:.2f} s")
LOST_RANK = Template("rank {numbers}")
LOST_RANKS = Template("ranks {numbers}")
REPLACED = Template(", {count} of them new")
FROM_MEMORY = Template("from the memory of a survivor")
FROM_CHECKPOINT = Template("from the newest checkpoint, as no survivor holds the whole state")
ANEW = Template("anew, as no survivor holds the whole state and there is no checkpoint")
ITERATION = Template(
    "iteration {iteration:,}/{iterations:,}, {epoch}: {scores}, rate {lr:.4g}, {images_per_s:,.0f} images/s"
)
EPOCH = Template("epoch {epoch}")
EPOCH_OF = Template("epoch {epoch}/{epochs}")
SCORES = Template("loss {loss:.4f}{others}")
SCORE = Template(", {name} {value}")
EVALUATED = Template("iteration {iteration:,}  test loss {loss:.4f}{others}{best}  {clock}")
SHORT_SCORE = Template(" {name} {value}")
WEIGHTS = Template("weights sha256 {sha256}")

# words: the end
COMMUNICATION = Template("communication: {percent:.1f} % of the time")
EXCHANGED = Template("; an iteration exchanges {size} and waits {held} for that")
MOST_FOR = Template(", {most} of it for {spans}")
LAG = Template("{name} lag {median} (median) to {most}")
APART = Template("{lags}; updates a second by rank: {rates}")
TEST = Template("test {scores}{best}")
SPEED = Template("{images_per_s:,.0f} images/s")
SPEED_BESIDE = Template("{images_per_s:,.0f} images/s measured, {predicted_per_s:,.0f} predicted: {percent:+.0f} %")
BEST_IN = Template("; best {value} in epoch {epoch} ({mark})")
BEST_BEFORE = Template("; best {value} before ({mark})")
KEPT = Template("run folder {folder}{checkpoint}")
NEWEST_CHECKPOINT = Template(", newest checkpoint {name}")
FINISHED = Template("this run is done ({length}); {longer} lengthens it")
OUTCOME = Template("{reason}: {iterations}, {epochs} on {ranks} in {clock}")

# live
LOSS = Template("loss {loss:.4f}")
ACCURACY = Template("accuracy {accuracy}")
LEFT = Template("{clock} left")
ITERATIONS = Template("iteration {iteration:,}/{iterations:,}")

# sinks
LOG_UNWRITTEN = Template("log {path}: could not be written ({problem}); the run goes on without")
LOG_MISSING = Template("log {path}: {missing}")
MISSING = Template("{records} could not be written: no room, or the disk failed")
LOG_UNWRITABLE = Template(
    "log {path}: could not be written ({problem}); make room or allow writing there, then continue from the last "
    "checkpoint with --resume auto"
)

# tensorboard
NO_TENSORBOARD = Template(
    "--tensorboard needs the Python package tensorboard ({error}): pip install 'ringtrain[tensorboard]', or leave "
    "--tensorboard out"
)

# figure
PICTURE_NEEDS_MATPLOTLIB = Template("a picture needs matplotlib: pip install 'ringtrain[plot]'")
UNKNOWN_PICTURE = Template("--plot {path}: unknown kind of picture {ending!r}; {hint}")
AND_MORE = Template("{count} more")
PICTURE_TITLE = Template("{model} on {data}, {ranks}, batch {batch:,}")

# plots
NO_MATPLOTLIB = Template("matplotlib is not installed: pip install 'ringtrain[plot]' draws the curves of the next run")
NOTHING_TO_DRAW = Template("{path} has no iteration to draw")
CROSS_ENTROPY = Template("Loss: cross-entropy")
LOSS_OF = Template("Loss: {name}")
LAST_AND_BEST = Template("test: last {last}, best {best}")
RATE_AXIS = Template("Learning rate")
SPEED_AXIS = Template("Images/s, over all ranks")
MEDIAN = Template("median {value:,.0f}")
EPOCH_AXIS = Template("epoch")
ITERATION_AXIS = Template("iteration")
TIME_AXIS = Template("time, s")
MINUTES_AXIS = Template("time, min")
HOURS_AXIS = Template("time, h")
TRAIN_CURVE = Template("train, running mean")
TEST_CURVE = Template("test")
NOT_RECORDED_HERE = Template("the run has recorded no {what}")

# comparison: picture
EXAMPLES_AXIS = Template("examples")
BYTES_AXIS = Template("sent by all ranks, MB")
LOSS_AXIS = Template("loss")
ACCURACY_AXIS = Template("accuracy, %")
IMAGES_AXIS = Template("images a second")
SENT_AXIS = Template("sent, MB: a bar a rank")
SENT_RANGE_AXIS = Template("sent, MB: least, median and most of all ranks")
MODEL_ON_DATA = Template("{model} on {data}")
NOT_RECORDED = Template("no run has recorded {what}")
BAND = Template("± one standard deviation over seeds")
PARETO_FRONT = Template("Pareto front: no other is as good for less")
DOMINATED = Template("not on the front")

# trace
NO_TRACE = Template("{path} is not a trace of `ringtrain train --trace` ({error})")

# runs
NO_RUN = Template("{folder} is not a run's folder: {why}. Give folders that `ringtrain train` made")
NO_START = Template("its {log} has no start of a run")
NO_LOG = Template("it has no {log}")
NOT_THERE = Template("it is not there")
UNREADABLE = Template("{path} cannot be read: {error}")
LOG_TOO_LARGE = Template(
    "{path} has {size:,} bytes; a log that is read as a whole has at most {most:,}: give a run folder with a part of it"
)

# comparison: notes
DIFFERENT = Template("different {what}: {usual}, but {others}")
VALUE_OF = Template("{value} ({names})")
RESUMED_RUNS = Template("resumed, so that speed, bytes and memory are of the last part alone: {names}")
OTHER_LENGTHS = Template("not all trained on as many examples: the picture has scores at equal examples")
LOG_ENDS = Template("{name}: the log ends after iteration {iteration:,}, and does not say why")
ENDED_AFTER = Template("{name}: {outcome} after iteration {iteration:,}")
PROBLEM = Template("{name}: {problem}")
NOT_ALL_ENDED = Template("{name}: {ended} of {runs} came to the end, and means are of these alone")

# scaling
NO_INTERVALS = Template("one round: no intervals")
INTERVALS = Template("medians over interleaved rounds; intervals are of the median: {confidences}")
CONFIDENCE = Template("{percent:.0f} % with {rounds} rounds")
STRONG_CURVE = Template("strong: the same global batch")
WEAK_CURVE = Template("weak: the same batch a rank")
STRONG_PREDICTED = Template("strong, predicted")
WEAK_PREDICTED = Template("weak, predicted")
IDEAL = Template("ideal")
SPEEDUP_AXIS = Template("speed-up over {ranks}")
RANKS_AXIS = Template("ranks")
EFFICIENCY_AXIS = Template("efficiency, %")
