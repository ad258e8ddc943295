"""Aligners as they are after a restart: written as the journal keeps them, and read again."""

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.rows.aligner import Aligner
from otel_rl.bridge.rows.open_run.run_state import RunState
from otel_rl.records import ExperimentStatus

__all__ = ["from_bytes", "revived", "to_bytes"]


def to_bytes(aligner: Aligner) -> bytes:
    """Encode the state of an aligner, with nothing announced of its run."""
    about = wire.About({}, {}, (0, ExperimentStatus.RUNNING), [], None, {})
    return wire.encode(wire.Run(wire.VERSION, aligner.state.to_wire(), about, None))


def from_bytes(body: bytes, like: Aligner) -> Aligner:
    """Decode what ``to_bytes`` gave, with the settings of another aligner."""
    with wire.refusing():
        state = RunState.from_wire(wire.decode(body, wire.Run).aligner, like.settings)
    return Aligner(state=state)


def revived(aligner: Aligner) -> Aligner:
    """Encode and decode an aligner."""
    return from_bytes(to_bytes(aligner), aligner)
