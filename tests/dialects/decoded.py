"""Recordings, decoded as the bridge does, and the keys that they have in a run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Row, Signal, SpanRecord
from tests.dialects.replay import requests
from tests.support.doors import decode

NOW_NS = 1_800_000_000_000_000_000

_MAX_OBJECTS = 100_000


def decoded(name: str, signal: Signal = Signal.METRICS) -> Sequence[Decoded]:
    """Return the requests of one signal."""
    found = []
    for path, body in requests(name, NOW_NS):
        if path.endswith(signal.value):
            parsed = parse_json(signal, body, max_objects=_MAX_OBJECTS)
            (batch,) = validate(signal, parsed, ReceiveLimits(), NOW_NS).batches
            found.append(decode(batch))
    return found


def keys(name: str) -> Mapping[str, float]:
    """Return the keys of a recording in a run, each with its last value."""
    return {key: value for row in _rows(name) for key, value in row.values.items()}


def totals(name: str) -> Mapping[str, float]:
    """Return the keys of a recording in a run, each with the sum over its rows."""
    found: dict[str, float] = defaultdict(float)
    for row in _rows(name):
        for key, value in row.values.items():
            found[key] += value
    return found


def spans(name: str) -> Sequence[SpanRecord]:
    """Return the spans of a recording."""
    return [span for one in decoded(name, Signal.TRACES) for span in one.spans]


def _rows(name: str) -> Sequence[Row]:
    aligner = Run(AlignSettings())
    for one in decoded(name):
        aligner.add(one, received_ns=NOW_NS)
    return aligner.close(NOW_NS, everything=True)
