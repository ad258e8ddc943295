"""The bridge with one safety layer taken out, to show that the harness would notice.

Each function changes the classes of this process, which is about to become a bridge.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from otel_rl.bridge.align.seen import Seen
from otel_rl.bridge.spool import Spool
from otel_rl.bridge.track import RunInfo, writer_file
from otel_rl.bridge.track.writer_process import WriterProcess
from otel_rl.records import Row

__all__ = ["MUTANTS"]

_LATE_S = 0.3


def _early_ack() -> None:
    """Answers before the batch is durable, which it becomes a moment later."""
    durable = Spool.append

    def append(spool: Spool, *arguments: object) -> None:
        def later() -> None:
            time.sleep(_LATE_S)
            durable(spool, *arguments)  # type: ignore[arg-type]  # whatever they are

        threading.Thread(target=later, daemon=True).start()

    Spool.append = append  # type: ignore[assignment,method-assign]  # that is the mutation


def _trusted_cursor() -> None:
    """Goes on after the last row that it handed over, whatever the tracker says that it has."""
    opened, written = WriterProcess.open, WriterProcess.write
    cursors: dict[WriterProcess, Path] = {}

    def open_(writer: WriterProcess, run: RunInfo, /) -> int:
        cursor = cursors[writer] = writer_file(run, "cursor")
        position = opened(writer, run)
        return max(position, int(cursor.read_text())) if cursor.exists() else position

    def write(writer: WriterProcess, rows: Sequence[Row], /) -> None:
        written(writer, rows)
        cursors[writer].write_text(str(rows[-1].number + 1))

    WriterProcess.open = open_  # type: ignore[method-assign]  # that is the mutation
    WriterProcess.write = write  # type: ignore[method-assign]


def _no_dedup() -> None:
    """Takes every point that comes for a new one."""

    def take(_seen: Seen, *_point: int) -> bool:
        return True

    Seen.take_interval = take  # type: ignore[assignment,method-assign]  # that is the mutation
    Seen.take_time = take  # type: ignore[assignment,method-assign]


MUTANTS: Mapping[str, Callable[[], None]] = {
    "early_ack": _early_ack,
    "no_dedup": _no_dedup,
    "trusted_cursor": _trusted_cursor,
}
"""By name."""
