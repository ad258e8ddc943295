"""Observations of runs that are slow from their first step, and of healthy ones."""
