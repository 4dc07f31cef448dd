"""Tags of messages that are not a bucket's: buckets take theirs from 0 on. One a use; every MPI has tags to 32,767."""

GOSSIP = 30_000
MASTER_BATCH, MASTER_HEAD = 30_010, 30_011
