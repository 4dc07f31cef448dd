"""What a run shows while it runs: a live display, or plain lines."""
