"""Rows with every single measurement of every worker, as few as possible."""

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["single_rows"]


def single_rows(
    single: Mapping[str, Sequence[tuple[int, float]]],
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield rows that hold every measurement once, in order of time.

    Measurements of different series share a row as long as no series would be in it twice: few wide
    rows cost a tracker far less than many narrow ones.

    Args:
        single: Tracker key to (time in ns, value) of each measurement, in the order of arrival.

    Yields:
        Time of the latest measurement in the row, and the row's values by key.
    """
    if set(map(len, single.values())) == {1}:  # nearly always, and much faster
        row = {key: value for key, ((_, value),) in single.items()}
        yield max(time_ns for ((time_ns, _),) in single.values()), row
        return
    ordered = sorted(
        (time_ns, place, key, value)
        for key, measured in single.items()
        for place, (time_ns, value) in enumerate(measured)
    )
    row = {}
    row_ns = 0
    for time_ns, _, key, value in ordered:
        if key in row:
            yield row_ns, row
            row = {}
        row[key] = value
        row_ns = time_ns
    if row:
        yield row_ns, row
