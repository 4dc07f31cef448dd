"""Lines, notes and errors of what a run shows, and of comparisons."""

from ringtrain.template import Template

# words: the header
VERSION = Template("ringtrain {version}")
LENGTH = Template("{epochs}{iterations}{resumed}")
EPOCHS = Template("{epochs}, ")
PREDICTED = Template(
    "{step_ms:.2f} ms an iteration, {images_per_s:,.0f} images/s, {exposed_ms:.2f} ms exposed; {strategy}{algorithm}"
)
PREDICTED_ALGORITHM = Template(" ({algorithm})")
PREPARING = Template("preparing the first iteration")

# words: while it runs
LOST = Template("lost {lost}: {ranks}{replaced}, on after iteration {iteration:,} {source}; it took {seconds:.2f} s")
REPLACED = Template(", {count} of them new")
SCORE = Template(", {name} {value}")
SHORT_SCORE = Template(" {name} {value}")

# words: the end
SPEED = Template("{images_per_s:,.0f} images/s")

# live
LOSS = Template("loss {loss:.4f}")

# sinks
LOG_UNWRITTEN = Template("log {path}: could not be written ({problem}); the run goes on without")


# plots
TIME_AXIS = Template("time, s")
TRAIN_CURVE = Template("train, running mean")
TEST_CURVE = Template("test")

# comparison: picture
BYTES_AXIS = Template("sent by all ranks, MB")
LOSS_AXIS = Template("loss")
ACCURACY_AXIS = Template("accuracy, %")
MODEL_ON_DATA = Template("{model} on {data}")
NOT_RECORDED = Template("no run has recorded {what}")

# runs
NO_RUN = Template("{folder} is not a run's folder: {why}. Give folders that `ringtrain train` made")


# scaling
INTERVALS = Template("medians over interleaved rounds; intervals are of the median: {confidences}")
CONFIDENCE = Template("{percent:.0f} % with {rounds} rounds")
