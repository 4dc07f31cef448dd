"""What surrounds a run: which device a rank uses, and whether all that a run needs is there."""
