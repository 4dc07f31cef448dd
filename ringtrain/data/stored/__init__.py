"""Arrays in files, read by rows and never whole."""
