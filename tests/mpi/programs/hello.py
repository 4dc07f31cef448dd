"""Connect, say who one is, and end. Errors as the command line would tell them."""

import sys

from ringtrain.errors import RingtrainError
from ringtrain.transport.world import connect

try:
    transport = connect()
except RingtrainError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
window = transport.node_window(8)
print(f"rank {transport.rank} of {transport.size}, {transport.describe()}, window: {window is not None}")
transport.close()
