"""Execution of schedules and programs in shared memory on buffers."""
