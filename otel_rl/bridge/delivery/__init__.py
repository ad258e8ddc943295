"""Writes the rows of each run to its tracker, in order, until the last one is confirmed."""
