"""Tags of messages that are not of buckets, which count from 0 on. An MPI has tags up to 32,767 at least."""

GOSSIP = 29_000
MASTER = 29_010
RANK_STATE = 29_030  # of each rank, to a checkpoint on rank 0 and back
COLUMNS = 30_000  # of fully connected layers that ranks share: one after another, in one order
