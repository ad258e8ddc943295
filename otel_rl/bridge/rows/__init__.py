"""Turns measurements into the numbered rows of one run: alignment, reduction, exactly once."""
