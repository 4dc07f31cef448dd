"""A ring of messages, and which UCX they went by."""

import numpy as np

from ringtrain.transport.mpi import libmpi
from ringtrain.transport.world import connect
from tests.mpi.programs.moves import run

transport = connect()
right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
for count in (1, 1000, 1 << 20):
    out, into = np.full(count, transport.rank, "f4"), np.zeros(count, "f4")
    recv, send = transport.recvs([(left, into)], 0), transport.sends([(right, out)], 0)
    run(recv, send)
    assert (into == left).all()
answers = transport.gather_json([str(libmpi.loaded(libmpi.LIBUCP)), libmpi.query().answer, libmpi.ucx().answer])
if transport.rank == 0:
    print(*(f"{path} query={query} ucx={ucx}" for path, query, ucx in answers), sep="\n")
transport.close()
