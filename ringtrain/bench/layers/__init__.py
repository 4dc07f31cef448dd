"""`ringtrain time`: the time of each layer."""
