"""Selects what a tracker gets of each row."""
