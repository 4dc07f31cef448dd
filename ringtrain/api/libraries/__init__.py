"""Arrays of other libraries as memory to reduce: one library a file."""
