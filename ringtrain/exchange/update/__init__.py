"""The optimizer's update of the elements that a rank owns."""
