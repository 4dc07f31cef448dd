"""One measurement: buffers, contenders, timing, checks, the row that it gives."""
