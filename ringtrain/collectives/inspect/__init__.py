"""Cost and pictures of schedules."""
