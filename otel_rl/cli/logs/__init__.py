"""Logs of runs that others have written, read as if otel_rl had been there."""
