"""Tags of messages that are not a bucket's: buckets take theirs from 0 on. One a use; every MPI has tags to 32,767."""

GOSSIP = 30_000
MASTER = 30_010
