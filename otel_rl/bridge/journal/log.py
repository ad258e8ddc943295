"""The logs of a run: parts that commits add, and that go when they are no longer needed.

All are in one table. A part has the newest of what is in it: a time in ns, or a number of the log's
own. What is forgotten up to a time or number is every part whose newest is not after it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from otel_rl.bridge.journal.interface import Connection, checksum

__all__ = ["Log", "change_logs", "read_log"]


class Log(StrEnum):
    """Kinds of logs. How much there is of each is bounded by those who add to it and forget."""

    DEDUP = "dedup"
    """Points that were taken and are not in the state, to recognise them when they come again."""

    STEPS = "steps"
    """Steps that got a row, or were taken again; by the number of the part."""

    SPANS = "spans"
    """Spans from which steps are still explained."""

    CHOSEN = "chosen"
    """Spans of chosen steps, which are never forgotten; see ``ChosenSteps``."""

    HISTORY = "history"
    """Records for a diagnosis."""

    ROLLOUTS = "rollouts"
    """Finished rollouts, see ``rows.rollouts``."""

    IN_FLIGHT = "in_flight"
    """Rollouts in flight: one part, which the next one replaces."""

    KEYS = "keys"
    """Meaning of the tracker keys, which is never forgotten."""


def change_logs(
    connection: Connection,
    run: str,
    added: Mapping[Log, tuple[int, bytes] | None],
    forgotten: Mapping[Log, int],
) -> None:
    """Add parts to the logs of a run, and remove others, in a transaction."""
    connection.executemany(
        "INSERT INTO log (run_id, kind, newest, body, crc) VALUES (?, ?, ?, ?, ?)",
        [
            (run, str(log), *part, checksum(part[1], run, str(log)))
            for log, part in added.items()
            if part is not None
        ],
    )
    connection.executemany(
        "DELETE FROM log WHERE run_id = ? AND kind = ? AND newest <= ?",
        [(run, str(log), newest) for log, newest in forgotten.items() if newest],
    )


def read_log(
    connection: Connection, run: str, log: Log, *, after: int | None = None
) -> Sequence[bytes]:
    """Return the parts of a log, oldest first, without damaged ones.

    Args:
        after: Only parts with something newer than this.
    """
    condition, limits = ("", ()) if after is None else (" AND newest > ?", (after,))
    kind = str(log)
    found = connection.execute(
        f"SELECT body, crc FROM log WHERE run_id = ? AND kind = ?{condition} ORDER BY number",  # noqa: S608  # ours
        (run, kind, *limits),
    ).fetchall()
    return [body for body, crc in found if checksum(body, run, kind) == crc]
