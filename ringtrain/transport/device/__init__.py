"""Transports of device memory."""
