"""Conditions on ``runs``: rows that several trackers have. The parameters are their names."""

__all__ = ["all_closed", "all_confirmed", "all_ended", "lacks_rows"]


def lacks_rows(n: int) -> str:
    """Return the condition that the run of one of ``n`` trackers was not closed with all rows."""
    return f"(next_row > 0 AND {_count('d.finished_row >= runs.next_row', n)} < {n})"


def all_closed(n: int) -> str:
    """Return the condition that the runs of ``n`` trackers were closed with all rows."""
    return f"({_count('d.finished_row = runs.next_row', n)} = {n})"


def all_confirmed(n: int) -> str:
    """Return the condition that ``n`` trackers have confirmed all rows."""
    return f"({_count('d.next_row = runs.next_row', n)} = {n})"


def all_ended(n: int) -> str:
    """Return the condition that each of ``n`` trackers was closed with all rows, or has them."""
    either = "(d.finished_row = runs.next_row OR d.next_row = runs.next_row)"
    return f"({_count(either, n)} = {n})"


def _count(condition: str, n: int) -> str:
    names = ", ".join("?" * n)
    return (
        "(SELECT COUNT(*) FROM deliveries AS d WHERE d.run_id = runs.run_id"  # noqa: S608  # ours
        f" AND d.tracker IN ({names}) AND {condition})"
    )
