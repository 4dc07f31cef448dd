"""Which options go together, in sentences. A reason is the middle of one: it follows the option as typed, and names the
other option as ``{other}``."""

from ringtrain.template import Template

# ── reasons of strategies ─────────────────────────────────────────────────────────────────────────────────────────────
ALGORITHM_SERVERS = Template("exchanges with servers only; {other} is for all-reduces")
TUNING_SERVERS = Template("holds times of all-reduces; with {other} ranks exchange with servers only")
WIRE = Template("rounds what ranks send; with {other} that is weights, and rounding would lose small updates")
COMPRESS_WEIGHTS = Template("sends the rest of a gradient later; {other} averages weights, which have no later sum")
COMPRESS_SERVERS = Template("compresses gradients alone; {other} sends whole weights back")
SCALE_ALONE = Template("skips an update if a gradient overflows; with {other} some ranks would skip it and others not")
HALVED_ACTIVATIONS = Template("keeps activations in 16 bits; {other} sends them in float32")
BATCH_NORM = Template("needs all ranks in every layer with equal weights; {other} does not guarantee that")
HYBRID_DELAYED = Template("updates columns in the same iteration; {other} applies gradients one iteration late")
HYBRID_APART = Template("needs all ranks in every pass with equal weights; with {other} each rank has its own")
PIPELINE = Template("joins the layers of one network; with {other} each rank has a network of its own")
REPRODUCIBLE = Template("updates every rank by one sum, added in one order over all shards; {other} does not")
CHECK_REPLICAS = Template("compares the weights of ranks; with {other} they differ while ranks train")
AVERAGE_APART = Template("averages the weights that all ranks share; with {other} each rank has its own")

# ── reasons of other options ──────────────────────────────────────────────────────────────────────────────────────────
SERVERS = Template("is about servers, which --sync averaging has with --asynchronous alone; this run has {other}")
AVERAGED_TOGETHER = Template("applies when all ranks average together; with {other} each rank averages alone")
LEVELS = Template("sums the gradients of a node's ranks first; with {other} each rank sends its own")
MIXED_ELSEWHERE = Template("mixes images and labels where they are computed; with {other} another rank has the labels")
RANDOM_IMAGES = Template("trains on random images; {other} names a data set")
