"""Texts of predictions."""

from ringtrain.template import Template

# layer_times, exchange_times
NO_LAYERS = Template("{path} is no file of `ringtrain time MODEL --json`: {reason}")
OTHER_MODEL = Template("{path} is of model {found}, not of {model}: give files of one model")
NO_SWEEP = Template("{path} has no finished sweep of `ringtrain bench-allreduce --json`")
BAD_SWEEP = Template("{path} is no sweep of `ringtrain bench-allreduce --json`: {problem}")
NO_FLOAT32 = Template("{path} has no float32 sums in place: measure them by `ringtrain bench-allreduce`")
NO_NODES = Template(
    "a plan of {nodes} nodes wants a sweep between nodes, and {path} is of one: measure it by "
    "`mpirun -np 2 --map-by node ringtrain bench-allreduce --json FILE`"
)
NOT_MEASURED = Template("{algorithm} was not measured in {path}; it has {known}")
NO_ALGORITHM = Template(
    "no algorithm of the sweep is one of {strategy} on {ranks} ranks and {nodes} nodes: it has {known}"
)
FILES_BY_RANKS = Template("layers of {ranks} a node are taken as measured with {measured} a node, for want of a file")
CROWDED = Template("{ranks} a node share {cores}: layers take {factor:.1f} times as long as measured")
PROPORTIONAL = Template("layers at other batches of a rank than {batches} are taken in proportion")

# plan_file
NO_PLAN = Template("{path} is no file of `ringtrain plan MODEL --json`: {reason}")
NO_ROWS = Template("it has no rows")
LACKS = Template("it lacks {name}")
OTHER_FORM = Template("it is JSON of another form")
BAD_FIELD = Template("{name} is {value!r}")
NO_ROW = Template("{paths} has no prediction of {what}: {reason}")
NO_ROW_YET = Template("{paths} has no prediction of {what}: {reason}; `{command}` makes one")
PLAN_COMMAND = Template("ringtrain plan {model} --layers LAYERS.json --fabric SWEEP.json {options} --json PLAN.json")
THIS_RUN = Template("this run")
SCALING = Template("{scaling} scaling on ranks {ranks}")
UNPLANNED = Template("plans are of runs without {options}")
OTHERS = Template("it has {name} {known}, and the run has {value}")

# tables, plots
BATCH_OF_ALL = Template("batch {images:,} over all ranks")
BATCH_OF_A_RANK = Template("batch {images:,} of each rank")
PLAN_HEAD = Template(
    "# {model}, {batch}, {per_node} a node, overlap {overlap}; predicted from measured layers and all-reduces"
)
NOTE = Template("# {note}")
WINS = Template("from {ranks:,} ranks on the fastest is {strategy} ({algorithm})")
STILL_PAYS = Template("up to {ranks:,} ranks each further rank adds at least half the images/s of one rank alone")
STOPS_PAYING = Template("beyond {ranks:,} ranks a further rank adds less than half the images/s of one rank alone")
IDEAL, RANKS_AXIS, RATE_AXIS, EFFICIENCY_AXIS = "ideal", "ranks", "images/s", "efficiency, %"
PICTURE_TITLE = Template("{model}, {batch}, {per_node} ranks a node: predicted")
