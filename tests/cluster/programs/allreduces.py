"""Under mpirun: an ALGORITHM's all-reduce of so many BYTES, so many TIMES; the seconds that they took."""

import sys
import time

import numpy as np

from ringtrain.allreduce.catalogue import make_allreduce
from ringtrain.transport.world import connect

algorithm, nbytes, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
transport = connect()
buffer = np.zeros(nbytes // 4, np.float32)
reduction = make_allreduce(transport, buffer, algorithm, lambda a, b, y: np.add(a, b, out=y))
transport.barrier()
began = time.perf_counter()
for _ in range(times):
    reduction.start()
    reduction.wait(60.0)
transport.barrier()
took = time.perf_counter() - began
if transport.rank == 0:
    print(took)
transport.close()
