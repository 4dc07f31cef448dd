"""Networks: layers, the graph they form, the arena that holds their weights, the files they come from."""
