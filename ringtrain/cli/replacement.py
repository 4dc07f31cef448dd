"""The program of a rank that replaces a lost one: ``python -m ringtrain.cli.replacement``, and a run's arguments."""

import os
import sys

from ringtrain.cli.main import run
from ringtrain.transport.fault_tolerance import MARK

if __name__ == "__main__":
    os.environ[MARK] = "1"
    sys.exit(run(sys.argv[1:]))
