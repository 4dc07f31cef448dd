"""Errors and notes of the exchange strategies."""

from ringtrain.template import Template

# deferred_update, averaging, delayed, gossip
CLIP_FACTOR = Template("the factor of --clip-norm {norm:g}")
MEAN_ASIDE = Template("evaluations and checkpoints see the mean of all ranks' weights; each rank goes on with its own")


# activation_collectives, reduce_scatter, shards: names of collectives
GRADIENTS_TO = Template("of gradients to {layer}")


# reducer, gossip, endpoint, client: the awaited ranks and operations
AWAITED_UPDATES = Template("{ranks} to give an update")

# sharded, bucketed_allreduce
FROM_TO = Template("{least} to {most}")
