"""Errors and notes of the exchange strategies."""

from ringtrain.template import Template

# deferred_update, averaging, delayed, gossip
UPDATES_WHOLE = Template("--overlap forward is backward here: with --elastic no update is left half done")
NEEDS_ALL_GRADIENTS = Template(
    "--overlap forward is backward here: {quantity} is known when all gradients have arrived"
)
CLIP_FACTOR = Template("the factor of --clip-norm {norm:g}")
FINITE_GRADIENT = Template("whether the gradient of a scaled loss (--precision float16) is finite")
SUMS_WITHIN_PASSES = Template(
    "--overlap forward is backward here: on a device, layers that sum statistics over ranks (--batch-norm sync) would "
    "hold the servers' weights back"
)
SERVERS_NEED_ALL = Template(
    "with --overlap forward servers send buckets back when all gradients have arrived: only then is {quantity} known"
)
NO_OVERLAP = Template(
    "--overlap {overlap} has no effect: ranks wait for averages, and gradients travel only before --average-from"
)
SUMS_APPLIED_LATE = Template(
    "--overlap forward is backward here: a sum already has one iteration to arrive before it is applied, and a later "
    "update would delay the next sum, too"
)
MEAN_ASIDE = Template("evaluations and checkpoints see the mean of all ranks' weights; each rank goes on with its own")
EVERY_ITERATION = Template("every iteration")
EVERY = Template("every {count}")
MOMENTUM = Template("momentum: {momentum}")
ALL_REDUCE_UNTIL = Template("all-reduce up to iteration {iteration}")
OUTER = Template("outer momentum {momentum:g}, rate {rate:g}")
ONE_LATE = Template("by one iteration")
ITERATIONS_APART = Template("up to {window} iterations apart")

# reproducible
REPRODUCIBLE_OVER = Template("reproducible over {shards} shards")
OTHER_TREE = Template(
    "--algorithm {algorithm} does not add gradients of {shards} shards as --reproducible does, at {size} ranks: {why}. "
    "Give {auto}, {mapped} or {canonical}{others}"
)
NO_PROOF = Template("there is no proof of the order in which it adds")
OR_ONE_OF = Template(", or one that does: {names}")
REPRODUCIBLE = Template("reproducible: gradients of {shards} shards are added in one tree, {how}")
OVER_MESSAGES = Template("{schedule} over messages: {why}")
IN_SHARED_MEMORY = Template("in memory that the ranks share")
AS_ASKED = Template("--algorithm asks for it")
ONE_RANK = Template("there is one rank")
SEVERAL_NODES = Template("there are {nodes} nodes")
MORE_RANKS_THAN_SHARDS = Template(
    "--reproducible cuts the batch into --shards {shards}, and there are {size} ranks, each of which needs a shard: "
    "start at most {shards}, or give more --shards, which changes the result"
)

# error_feedback, powersgd, topk
COMPRESSED = Template("with {method}, error feedback")
COMPRESSED_FROM = Template("with {method}, error feedback, from iteration {iteration}")
COMPRESSED_BYTES = Template(
    "{method}: {after} a rank and iteration, {percent:.3g} % of the {before} of whole gradients"
)
POWERSGD = Template("PowerSGD of rank {rank}")
COMPRESSES_NOTHING = Template(
    "--compress powersgd with --compress-rank {rank} compresses nothing: no matrix of this model is larger than its "
    "two factors of that rank. Give a lower rank, or --compress top-k"
)
TOP_K = Template("top-k {percent:g} %")

# activation_collectives, reduce_scatter, shards: names of collectives
ALL_GATHER = Template("all-gather {what}")
REDUCE_SCATTER = Template("reduce-scatter {what}")
ALL_TO_ALL = Template("all-to-all {what}")
OF_EXAMPLES = Template("of examples for {layer}")
GRADIENTS_FROM = Template("of gradients from {layer}")
GRADIENTS_TO = Template("of gradients to {layer}")
OF_COLUMNS = Template("of columns of {layer}")
OF_ROWS = Template("of rows of {layer}")
SUM_AT_SERVER = Template("sum at a server")
SPREAD_FROM_SERVER = Template("spread from a server")

# ownership, parameter_server
MORE_SERVERS_THAN_RANKS = Template(
    "--servers {servers} is more than the {ranks}: give at most {size}, or start more ranks"
)
NONE_TO_TRAIN = Template(
    "--dedicated with --servers {servers} leaves none of the {ranks} to train: start more ranks, or give --no-dedicated"
)
MORE_SERVERS_THAN_PARAMETERS = Template(
    "--servers {servers} is more than the {count} parameters of the model: give at most {count}"
)
ON_SERVERS = Template("on {ranks}")
ON_DEDICATED = Template("on {ranks}, dedicated")
NODES_FIRST = Template("{servers}, heads of nodes first")
ONE_SERVES_ALL = Template("rank 0 serves all {nbytes} of weights")
SERVERS_HAVE = Template("{count} servers have {least} to {most} of weights each")

# reducer, gossip, endpoint, client: the awaited ranks and operations
AWAITED_UPDATE = Template("this rank's device to make its update")
AWAITED_UPDATES = Template("{ranks} to give an update")
AWAITED_MEETING = Template("{ranks} to come to the meeting of all ranks")
AWAITED_BUCKET = Template("this rank's device to make {bucket} final")
AWAITED_WEIGHTS = Template("this rank's device to make its weights final")
AWAITED_SERVER = Template("{server} to send weights")

# hybrid
WITH_HYBRID = Template("with fc hybrid")
HYBRID_NO_LAYERS = Template(
    "--fc hybrid divides the fully connected layers at the end of a model, and {model!r} has none there: leave --fc at "
    "data"
)
HYBRID_FEW_COLUMNS = Template(
    "--fc hybrid gives each rank columns of every fully connected layer, and {layer!r} has {units}, fewer than the "
    "{size} ranks: use at most {units}, or leave --fc at data"
)
HYBRID_FEW_PARAMETERS = Template(
    "--servers {servers} is more than the {count} parameters that --fc hybrid leaves to servers: give at most {count}, "
    "or leave --fc at data"
)
HYBRID_NO_PARAMETERS = Template(
    "--fc hybrid divides all parameters of {model!r} among ranks, and leaves none to servers: give --sync allreduce, "
    "or leave --fc at data"
)
HYBRID = Template("hybrid: columns of {layers} are divided among {size} ranks: {cost}")
HYBRID_ONE_RANK = Template("one rank has all columns, and sends nothing")
HYBRID_SENDS = Template("a rank sends on average {numbers} numbers for them in an iteration, with --fc data {others}")
HYBRID_LESS = Template("{sends}: {share:.0%} less")
HYBRID_MORE = Template("{sends}: at this batch --fc data sends less")

# activation_messages
MICRO_BATCH = Template("micro-batch {micro} of rank {rank} in iteration {iteration}")
OTHER_MESSAGE = Template("rank {rank} sent {found} instead of {wanted}: the ranks do not run the same messages")

# master
ON_ROOT = Template("on rank 0")
ROOT_DOES_ALL = Template("rank {root} reads all batches, computes the loss and keeps the optimizer's {nbytes}")

# pipeline
WITH_PIPELINE = Template("with fc pipeline of {others} + {fc} ranks, {in_flight} in flight, updated {when}")
AT_EACH_MESSAGE = Template("at each message")
ONCE_AN_ITERATION = Template("once an iteration")
ONCE_A_BATCH = Template("after as many examples as a batch has")

# parameter_server, change_push
OWN_STATE = Template(
    "each rank that trains keeps the optimizer's state, with momentum, of its own updates; it sends them after "
    "backward, since they need the learning rate and the whole gradient"
)
PERIODS_END = Template("evaluations and checkpoints end the periods of --average-every: ranks push, and pull weights")
ASYNCHRONOUS = Template("{servers}, asynchronous")
STALENESS = Template("{servers}, staleness {staleness}")
EVERY_MORE = Template("{terms}, every {count}")

# layer_placement
NO_OTHER_RANKS = Template(
    "--fc-ranks {fc} of {ranks} leaves none for the other layers: start at least {least} ranks, or give --fc data"
)
NO_FC_LAYERS = Template(
    "--fc pipeline gives ranks of their own to fully connected layers, and the model does not end in any: give --fc "
    "data"
)
NOTHING_BEFORE = Template(
    "--fc pipeline leaves the layers before {layer!r} to the other ranks, and these layers have no parameters: give "
    "--fc data"
)
MORE_THAN_COLUMNS = Template(
    "--fc-ranks {fc} is more than the model's fully connected layers can be divided among ({parts}): give at "
    "most {most}"
)
COLUMNS_TO_DIVIDE = Template("{layer}: {columns}")
NOT_DIVIDED = Template("{layers}: 1 rank")
COLUMNS = Template("columns {columns}")
COLUMNS_OF = Template("{start}:{stop} of {layer}")
PART = Template("{ranks}: {layers}, {flops} an example, {weights} of weights, {onward}")
THE_LOSS = Template("the loss")
AN_EXAMPLE_ON = Template("{nbytes} an example on")

# sharded, bucketed_allreduce
SHARDED = Template("sharded by {algorithm}: a rank keeps {each} of the optimizer's {whole}")
FROM_TO = Template("{least} to {most}")
CHOSEN_FOR = Template("auto: {name} for {sizes}")
SIZES = Template("{sizes} ({why})")
SIZES_AT = Template("{sizes} (at {largest}: {why})")

# owned_update
OTHER_STATE = Template(
    "the checkpoint's optimizer keeps {found}, this run's keeps {wanted}: resume with the --optimizer, the --sync and "
    "the --compress that wrote it"
)
OTHER_SIZE = Template(
    "the checkpoint's {name!r} has {found} elements, this model's has {wanted}: resume with the model that wrote it"
)
