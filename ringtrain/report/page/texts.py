"""Texts of the page, and errors of what it reads."""

from ringtrain.template import Template

# metrics.py
UNREADABLE = Template("{path} cannot be read: {error}")
NO_METRICS = Template("{path} does not hold metrics of `ringtrain evaluate -o metrics.json` ({error})")
NOT_SQUARE = Template("the confusion matrix is not one of {size} classes")

# inputs.py: what is left out
NO_CONFIG = Template("configuration: the folder has no config.toml")
NO_TRACE_HERE = Template("timeline: the run was not traced; `ringtrain train --trace` does")
TRACE_ELSEWHERE = Template(
    "timeline: the run's trace is {path}, and a report reads files of the run folder alone: copy it to {here}"
)
EMPTY_TRACE = Template("timeline: {path} holds no iteration")
NO_METRICS_HERE = Template("results by class: `ringtrain evaluate {folder} -o {folder}/metrics.json` makes them")
NO_CONFUSION = Template("confusion matrix: {path} has none, as of a loss without exclusive classes")
NO_EXCHANGE = Template(
    "communication by bucket: the log has no record of it, as of one rank or a run that was cut short"
)
NO_CURVES = Template("learning curves: the log has no iteration")

# timeline.py
OF_LOAD = Template("load")
OF_FORWARD = Template("forward")
OF_BACKWARD = Template("backward")
OF_UPDATE = Template("update")
OF_EXCHANGE = Template("start, test of a bucket")
OF_WAIT = Template("wait for other ranks")
OF_TRAVEL = Template("bucket under way")
MILLISECONDS = Template("ms")
RANK = Template("rank {rank}")
ON_DEVICE = Template("device")
BUCKETS = Template("buckets")

# figures.py
TOTAL = Template("from start to end")
EXPOSED = Template("exposed: training waits")
BUCKET = Template("{what}, {size}\n{spans}")
MS_PER_ITERATION = Template("ms an iteration, rank 0, median of the last ones")
PREDICTED = Template("predicted")
LABEL = Template("label")
SHARE = Template("share of the label's examples")

# sections.py
CURVES = Template("Learning curves")
COMMUNICATION = Template("Communication")
TIMELINE = Template("Timeline of the ranks")
TIMELINE_OF = Template(
    "{ranks} of {all_ranks}, the last traced iterations; all of it: {path} in https://ui.perfetto.dev"
)
CLASSES = Template("Results by class")
CONFIGURATION = Template("Configuration")
ENVIRONMENT = Template("Environment")
END = Template("Notes and end")
LEFT_OUT = Template("Not in this report")
EVALUATED = Template("{split} part, iteration {iteration:,}: {checkpoint}")
WORST = Template("the {shown} classes of {all:,} with the least F1")
LONGEST = Template("the {shown} buckets of {all:,} that take longest")
DEFAULTS = Template("{count} settings at their defaults")
NO_SETTING = Template("every setting is at its default")
ENDED = Template("{outcome} after iteration {iteration:,}")
EXPOSED_SHARE = Template("{percent:.1f} % of the training time, rank 0 waited for communication.")

# document.py
MADE_BY = Template("made by ringtrain {version}, {date}")
RUNS = Template("{count} runs: {names}")
FIGURES = Template("Figures")
DIFFERENCES = Template("What differs")
NO_DIFFERENCE = Template("no setting and no fact of the environment differs")
NOTES = Template("Notes")
