"""``--reproducible``: bit by bit the same weights, losses and scores at any number of ranks."""
