"""All-reduce schedules, one algorithm a file."""
