"""From names in a configuration to the objects of a run."""
