"""Data of each page, from what a journal has of a run."""
