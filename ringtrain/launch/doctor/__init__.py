"""``ringtrain doctor``: checks before a run, each with the advice that changes how the run is started."""
