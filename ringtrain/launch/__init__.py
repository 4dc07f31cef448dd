"""The surroundings of a run: the device of each rank, batch scripts, and the check of the machine."""
