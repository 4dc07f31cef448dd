"""The report of a run: events (frozen records) that the loop emits, and sinks that show, keep and draw them."""
