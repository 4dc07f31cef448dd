"""Tags of messages that are not of buckets, which count from 0 on. An MPI has tags up to 32,767 at least."""

COLUMNS = 30_000  # of fully connected layers that ranks share: one after another, in one order
