"""All-reduce by name: number types, wire formats, the automatic choice and its tuning files."""
