"""What a run leaves on the disk, so written that no crash, full disk or flipped bit passes for good."""
