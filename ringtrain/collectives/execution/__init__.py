"""Schedules and shared-memory plans at work on buffers."""
