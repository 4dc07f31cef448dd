"""The files of a run, written so that every crash, full disk or flipped bit is detected."""
