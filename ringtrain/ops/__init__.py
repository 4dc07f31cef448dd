"""The only seam between numbers and devices: see :class:`ringtrain.ops.base.Ops`."""
