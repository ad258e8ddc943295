"""Counts of things, in words."""


def many(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2 rows``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
