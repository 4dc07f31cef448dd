"""One iteration on one rank."""
