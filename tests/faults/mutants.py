"""The bridge with one safety layer taken out, to show that the harness would notice.

Each function changes the classes of this process, which is about to become a bridge.
"""

import threading
import time
from collections.abc import Callable, Mapping

from otel_rl.bridge.spool import Spool
from otel_rl.bridge.track.writer_process import WriterProcess

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
    """Goes on where it thinks it was, whatever the tracker says that it has."""
    cursors: dict[str, int] = {}
    opened, written = WriterProcess.open, WriterProcess.write

    def open_(writer: WriterProcess, run):  # type: ignore[no-untyped-def]
        writer.run_id = run.run_id  # type: ignore[attr-defined]
        return max(opened(writer, run), cursors.get(run.run_id, 0))

    def write(writer: WriterProcess, rows):  # type: ignore[no-untyped-def]
        written(writer, rows)
        cursors[writer.run_id] = rows[-1].number + 1  # type: ignore[attr-defined]

    WriterProcess.open = open_  # type: ignore[method-assign]
    WriterProcess.write = write  # type: ignore[method-assign]


MUTANTS: Mapping[str, Callable[[], None]] = {
    "early_ack": _early_ack,
    "trusted_cursor": _trusted_cursor,
}
"""By name."""
