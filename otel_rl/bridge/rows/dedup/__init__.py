"""Remembers which points were taken, so that none is counted twice."""
