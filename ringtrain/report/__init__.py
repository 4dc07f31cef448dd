"""What a run tells: events (frozen records) that the loop emits, and sinks that show, keep and draw them."""
