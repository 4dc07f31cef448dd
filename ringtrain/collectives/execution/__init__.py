"""Execution of schedules and shared-memory plans on buffers."""
