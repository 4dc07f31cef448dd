"""Two nodes send each other rows of random bytes, in which little changes from message to message."""

import numpy as np
from mpi4py import MPI

from ringtrain.transport.mpi.board_relay import RemoteRows

NBYTES, ROUNDS = 11_480, 12
comm = MPI.COMM_WORLD
rank, other = comm.rank, 1 - comm.rank
ours, theirs = (np.random.default_rng(each).integers(256, size=NBYTES, dtype=np.uint8) for each in (rank, other))
rows = np.zeros((2, NBYTES), np.uint8)
relay = RemoteRows(comm.Dup(), other, [other], [rank], NBYTES)
sizes = []
for number in range(ROUNDS):
    for row in (ours, theirs):
        row[80 * number : 80 * number + 16] = number
    rows[rank] = ours
    relay.send(rows[[rank]], last=number == ROUNDS - 1)
    sizes.append(len(relay._out))
    while not np.array_equal(rows[other], theirs):
        relay.receive(rows)
    comm.Barrier()
while not relay.ended:
    relay.send(rows[[rank]], last=True)
relay.free()
assert sizes[0] > NBYTES and max(sizes[1:]) < 200, sizes
print("all is well")
