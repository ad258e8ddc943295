"""The logs of a run: commits append parts, and remove parts that nobody needs any more.

One table holds all logs. A part is filed under the newest entry in it: a time in ns, or a number
that the log counts itself. Forgetting up to a time or number removes every part whose newest entry
is not after it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec import field

from otel_rl.bridge.journal.interface import Connection, checksum
from otel_rl.bridge.journal.state import Count, Int64, Stored

_MAX_PARTS: Final = 64
"""Sizes that are remembered of a log: so much of the oldest goes at a time."""


class Log(StrEnum):
    """Kinds of logs. Whoever adds to a log bounds its size by forgetting."""

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


class Appended(NamedTuple):
    """A new part of a log, which a commit stores beside the state of its run.

    Attributes:
        newest_ns: Time of the newest entry in the part, or the part's number where the log counts.
    """

    newest_ns: int
    body: bytes


class KeptParts(Stored):
    """Parts of a log within a bound on their bytes: beyond the bound, the oldest are forgotten.

    Attributes:
        parts: Newest time, bytes and number of records of each part, or of merged parts.
        forgotten_ns: Parts up to this time are not needed any more.
    """

    parts: list[tuple[Int64, Count, Count]] = field(default_factory=list)
    forgotten_ns: Int64 = 0

    def next_ns(self, now_ns: int) -> int:
        """Return the time of the next part, which is after the last one."""
        return max(now_ns, self.parts[-1][0] + 1 if self.parts else 0)

    def keep(self, newest_ns: int, size: int, number: int, max_bytes: int) -> int:
        """Add a part. Returns the number of records that are forgotten to make room for it."""
        parts = self.parts
        parts.append((newest_ns, size, number))
        if len(parts) > _MAX_PARTS:
            # The two neighbours with the smallest sum are merged.
            sizes = [one[1] + other[1] for one, other in pairwise(parts)]
            place = sizes.index(min(sizes))
            number_of_both = parts[place][2] + parts[place + 1][2]
            parts[place : place + 2] = [(parts[place + 1][0], sizes[place], number_of_both)]
        forgotten, total = 0, sum(part[1] for part in parts)
        while total > max_bytes and len(parts) > 1:
            self.forgotten_ns, freed, records = parts.pop(0)
            forgotten += records
            total -= freed
        return forgotten


def change_logs(
    connection: Connection,
    run: str,
    added: Mapping[Log, tuple[int, bytes] | None],
    forgotten: Mapping[Log, int],
) -> None:
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
        after: Return only parts with an entry newer than this.
    """
    condition, limits = ("", ()) if after is None else (" AND newest > ?", (after,))
    kind = str(log)
    found = connection.execute(
        f"SELECT body, crc FROM log WHERE run_id = ? AND kind = ?{condition} ORDER BY number",  # noqa: S608  # ours
        (run, kind, *limits),
    ).fetchall()
    return [body for body, crc in found if checksum(body, run, kind) == crc]
