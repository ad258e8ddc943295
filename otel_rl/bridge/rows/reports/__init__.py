"""Rows about the run itself: its metadata, data warnings, findings and sample counts."""
