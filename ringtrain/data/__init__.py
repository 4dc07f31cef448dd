"""Examples: data sets made from what people have, opened once a node, and handed out in batches."""
