"""Liveness of the workers of a run: expected, alive, failed, replaced."""
