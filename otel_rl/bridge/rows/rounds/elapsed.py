"""Time that has passed by a clock that may be set back."""

__all__ = ["has_passed"]


def has_passed(duration_ns: int, since_ns: int, now_ns: int) -> bool:
    """Return whether this time has passed; True if the clock was set back."""
    return not 0 <= now_ns - since_ns < duration_ns
