"""The command line: one file a command; parse, call, exit code, and no logic."""
