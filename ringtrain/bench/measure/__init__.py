"""One measurement: buffers, contenders, timing, checks, and the resulting row."""
