"""Parameter servers: workers push gradients or changes of weights to the owners of shards, and pull weights.

The first ``--servers`` ranks serve. All own the same number of elements, or whole parameters if the optimizer needs
their norms. Servers are workers too, unless they are dedicated. The staleness K decides what workers push:

    K = 0             gradients; the server updates when all workers have pushed (:mod:`.gradient_push`)
    K > 0, or no K    changes of weights; the server adds them on arrival (:mod:`.change_push`)
    quorum            changes of weights; the server makes a step along the mean of those of a round (:mod:`.quorum`)

With ``--asynchronous``, without a K, no worker waits for another. Bytes: a worker sends n, and a server n/S to each
worker: the server's link is the bottleneck.

Source: Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014.
"""
