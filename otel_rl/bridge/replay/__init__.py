"""Stored runs, written to a tracker again."""
