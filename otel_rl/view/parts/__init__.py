"""Data of each page, from the journal of a run."""
