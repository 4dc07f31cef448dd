"""The display of a run: a live display, or plain lines."""
