"""Detection of MPIs that take device memory, and the decision to use them."""
