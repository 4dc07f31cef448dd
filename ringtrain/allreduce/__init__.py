"""Any all-reduce by its name: number types, wire formats, the automatic choice and its tuning files."""
