"""Aligners as they are after a restart: written as the journal keeps them, and read again."""

from weakref import WeakKeyDictionary

from otel_rl.bridge.journal.state import decode, encode, refusing
from otel_rl.bridge.rows.aligner import Aligner
from otel_rl.bridge.rows.open_run.run_state import RunState, StoredRun
from otel_rl.bridge.rows.reports.run_metadata import RunMetadata

# Parts of the log of steps, by number, that a journal would have.
_STEPS: WeakKeyDictionary[Aligner, dict[int, bytes]] = WeakKeyDictionary()

__all__ = ["from_bytes", "revived", "to_bytes"]


def to_bytes(aligner: Aligner) -> bytes:
    """Encode the state of an aligner, with nothing announced of its run."""
    return encode(StoredRun(aligner.state.stored(), RunMetadata(), None))


def from_bytes(body: bytes, like: Aligner) -> Aligner:
    """Decode what ``to_bytes`` gave, with the settings of another aligner."""
    with refusing():
        state = RunState.restored(decode(body, StoredRun).state, like.settings)
    return Aligner(state=state)


def revived(aligner: Aligner) -> Aligner:
    """Encode and decode an aligner, and what it has logged of its steps."""
    logged = _STEPS.pop(aligner, {})
    if (new := aligner.logs.take_steps()) is not None:
        logged[new.number] = new.body
    again = from_bytes(to_bytes(aligner), aligner)
    _STEPS[again] = {n: body for n, body in logged.items() if n > aligner.logs.steps_forgotten}
    for body in _STEPS[again].values():
        again.logs.restore_steps(body)
    again.logs.steps_are_restored()
    return again
