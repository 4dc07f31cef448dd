"""The memory of a network: the arena of its weights and gradients, the buckets that are exchanged, a pass's arrays."""
