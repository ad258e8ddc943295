"""Runs as they are after a restart: written as the journal keeps them, and read again."""

from weakref import WeakKeyDictionary

from otel_rl.bridge.journal.state import decode, encode, refusing
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.stored_run import StoredRun

# Parts of the log of steps, by number, that a journal would have.
_STEPS: WeakKeyDictionary[Run, dict[int, bytes]] = WeakKeyDictionary()


def to_bytes(run: Run) -> bytes:
    """Encode the state of a run."""
    return encode(run.stored())


def from_bytes(body: bytes, like: Run) -> Run:
    """Decode what ``to_bytes`` gave, with the settings of another run."""
    with refusing():
        return Run(like.intake.settings, kept=decode(body, StoredRun))


def revived(run: Run) -> Run:
    """Encode and decode a run, and what it has logged of its steps."""
    logged = _STEPS.pop(run, {})
    steps = run.intake.steps
    if (new := steps.take_log()) is not None:
        logged[new.newest_ns] = new.body
    again = from_bytes(to_bytes(run), run)
    _STEPS[again] = {n: body for n, body in logged.items() if n > steps.logs.forgotten}
    for body in _STEPS[again].values():
        again.intake.steps.restore_log(body, len(again.intake.series.keys.groups))
    again.intake.steps.is_restored()
    return again
