"""Whatever gets into the state of a run is named in the list of what is read from a journal."""

from otel_rl.bridge import drain
from otel_rl.bridge.align import streams
from otel_rl.bridge.unpickle import ALLOWED
from otel_rl.records import SpanRecord
from tests.contract.kept_classes import kept_classes

ROOTS = (
    drain._State,  # the state
    streams._Identities,  # what is pickled by itself within it
    SpanRecord,  # the log of spans
)


def test_every_class_of_a_state_may_be_read_and_no_other_of_ours() -> None:
    allowed = {
        (module, name)
        for module, names in ALLOWED.items()
        if module.startswith("otel_rl.")
        for name in names
    }
    assert {(one.__module__, one.__qualname__) for one in kept_classes(*ROOTS)} == allowed
