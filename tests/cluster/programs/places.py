"""Under mpirun: where every rank is, as its transport sees it."""

import json
import socket

from ringtrain.transport.world import connect

transport = connect()
location = [transport.node, transport.local_rank, transport.local_size, socket.gethostname()]
every = transport.gather_json(location)
if transport.rank == 0:
    print(json.dumps({"nodes": transport.nodes, "places": every}))
transport.close()
