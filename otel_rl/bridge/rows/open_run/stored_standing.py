"""Reads how a run stands from its state in the journal, for a page that is looked at meanwhile."""

from typing import Final

from otel_rl.bridge.journal.interface import Connection, checksum
from otel_rl.bridge.journal.reader import KnownWorker, Standing
from otel_rl.bridge.journal.state import StateRefused, decode, decompress
from otel_rl.bridge.rows.open_run.run_state import StoredRun
from otel_rl.bridge.rows.pausable_clock import PausableClock
from otel_rl.bridge.rows.series.table_state import Identities

__all__ = ["read_standing"]

_NONE: Final = "None"  # of a subject that lacks the part


def read_standing(connection: Connection, run: str) -> Standing:
    """Return the processes and the verdict of a run; neither if its state cannot be read."""
    found = connection.execute("SELECT body, crc FROM states WHERE run_id = ?", (run,)).fetchone()
    if found is None or checksum(found[0], run) != found[1]:
        return Standing((), "")
    try:
        state = decode(found[0], StoredRun).state
        identities = decode(decompress(state.table.identities), Identities)
    except StateRefused:
        return Standing((), "")
    workers = [
        KnownWorker(
            who.instance,
            f"{of.role}/{of.label}",
            of.standing,
            of.first_ns,
            _by_the_bridges_clock(of.received_ns, of.event_ns, state.clock),
            of.newest_step,
        )
        for who, of in zip(identities.workers, state.table.workers, strict=False)
    ]
    subject = state.findings.last_subject or ("",)
    return Standing(
        workers,
        subject[0],
        state.goodput.written,
        _cause(*subject[1:]),
    )


def _by_the_bridges_clock(time_ns: int, event_ns: int, clock: PausableClock) -> int:
    """Return when the run's clock showed the time of an export.

    Args:
        time_ns: By the run's clock; 0 before an export.
        event_ns: By the worker's clock, to tell how far the run's was behind before its last pause.
        clock: Of the run.
    """
    if time_ns and time_ns > clock.since_ns - clock.deaf_ns:
        return time_ns + clock.deaf_ns
    return max(time_ns, min(event_ns, time_ns + clock.deaf_ns)) if time_ns else 0


def _cause(kind: str = _NONE, role: str = _NONE, worker: str = _NONE) -> str:
    """Return the first cause of a finding, by the rest of its subject."""
    where = next((one for one in (worker, role) if one not in {"", _NONE}), "")
    return "" if kind == _NONE else f"{kind} {where}".rstrip()
