"""A process alone, which tells what files of shared memory its MPI has, and is told to stop twice."""

import os
import re
import signal
from functools import partial

from ringtrain.train.start.recover import end_all
from ringtrain.train.stopping.signals import watching
from ringtrain.transport.world import MAPS, SEGMENT, World

with watching() as stop:
    stop.end_all = partial(end_all, World(lambda transport: transport))
    print(*set(re.findall(SEGMENT, MAPS.read_text())))
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
