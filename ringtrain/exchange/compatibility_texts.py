"""Which options go together, in sentences. A reason is the middle of one: it follows the option as typed, and names the
other option as ``{other}``."""

# ── reasons of strategies ─────────────────────────────────────────────────────────────────────────────────────────────
ALGORITHM_SERVERS = "exchanges with servers only; {other} is for all-reduces"
TUNING_SERVERS = "holds times of all-reduces; with {other} ranks exchange with servers only"
WIRE = "rounds what ranks send; with {other} that is weights, and rounding would lose small updates"
COMPRESS_WEIGHTS = "sends the rest of a gradient later; {other} averages weights, which have no later sum"
COMPRESS_SERVERS = "compresses gradients alone; {other} sends whole weights back"
SCALE_ALONE = "skips an update if a gradient overflows; with {other} some ranks would skip it and others not"
HALVED_ACTIVATIONS = "keeps activations in 16 bits; {other} sends them in float32"
BATCH_NORM = "needs all ranks in every layer with equal weights; {other} does not guarantee that"
HYBRID_DELAYED = "updates columns in the same iteration; {other} applies gradients one iteration late"
HYBRID_APART = "needs all ranks in every pass with equal weights; with {other} each rank has its own"
PIPELINE = "joins the layers of one network; with {other} each rank has a network of its own"
REPRODUCIBLE = "updates every rank by one sum, added in one order over all shards; {other} does not"
CHECK_REPLICAS = "compares the weights of ranks; with {other} they differ while ranks train"
AVERAGE_APART = "averages the weights that all ranks share; with {other} each rank has its own"

# ── reasons of other options ──────────────────────────────────────────────────────────────────────────────────────────
SERVERS = "is about servers, which --sync averaging has with --asynchronous alone; this run has {other}"
AVERAGED_TOGETHER = "applies when all ranks average together; with {other} each rank averages alone"
LEVELS = "sums the gradients of a node's ranks first; with {other} each rank sends its own"
MATRICES = "updates whole matrices, and the last layer by adamw; {other} divides matrices or layers among ranks"
MIXED_ELSEWHERE = "mixes images and labels where they are computed; with {other} another rank has the labels"
RANDOM_IMAGES = "trains on random images; {other} names a data set"
