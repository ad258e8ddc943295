"""Selects the values of each row that a tracker gets."""
