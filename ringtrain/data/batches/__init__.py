"""Examples in the order of an epoch, augmented and gathered into batches ahead of time."""
