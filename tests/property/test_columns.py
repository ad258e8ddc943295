"""One pass by column says what protobuf says of each point, whatever was seen before."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp.decode import decode_parts
from otel_rl.bridge.otlp.layouts import Layouts
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.receive.validate import Validated, validate
from otel_rl.errors import RequestError
from otel_rl.records import Batch, Decoded, ExperimentKey, Measurements, Signal
from tests.dialects.replay import requests
from tests.fuzz.corpus import Seed, corpus
from tests.property.metric_requests import NOW_NS, conversations
from tests.support.slow import examples

DIALECTS = Path("tests/dialects")
BOUNDS = {"max_points_per_request": 4000, "max_attributes": 3, "max_exemplars": 2}
LIMITS = ReceiveLimits(**BOUNDS)

_Spelled = tuple[list[str], str] | None


def decoded(payload: bytes, most: int = 1_000) -> _Spelled:
    batch = Batch(ExperimentKey("one"), Signal.METRICS, payload, NOW_NS)
    try:
        return _spelled([*decode_parts(batch, most)])
    except DecodeError:
        return None


def _spelled(parts: list[Decoded]) -> _Spelled:
    points = [
        replace(
            point,
            times_ns=[*point.times_ns],
            values=[*point.values],
            steps=[*point.steps],
        )
        if isinstance(point, Measurements)
        else point
        for part in parts
        for point in part.points
    ]
    return [*map(repr, points)], repr(parts[-1].exports)


@contextmanager
def message_by_message() -> Iterator[None]:
    """Let protobuf parse each point and exemplar."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layouts, "read", lambda _self, _run: None)
        yield


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_columns_say_what_messages_say(sent: list[bytes]) -> None:
    for payload in sent:
        found = decoded(payload)
        with message_by_message():
            assert decoded(payload) == found
        assert decoded(payload, 3) == found


@pytest.mark.parametrize("seed", [one for one in corpus(NOW_NS) if one.signal is Signal.METRICS])
def test_columns_of_what_senders_make_say_what_messages_say(seed: Seed) -> None:
    found = decoded(seed.protobuf)
    with message_by_message():
        assert decoded(seed.protobuf) == found


@pytest.mark.parametrize("name", sorted(one.stem for one in DIALECTS.glob("*.jsonl")))
def test_columns_of_recordings_say_what_messages_say(name: str) -> None:
    for path, body in requests(name, NOW_NS):
        if path.endswith(Signal.METRICS.value):
            payload = parse_json(Signal.METRICS, body, max_objects=100_000).SerializeToString()
            found = decoded(payload)
            with message_by_message():
                assert decoded(payload) == found


def outcome(found: Validated) -> object:
    batches = [
        (batch.experiment, batch.received_ns, _canonical(batch.payload)) for batch in found.batches
    ]
    return replace(found, batches=()), batches


def _canonical(payload: bytes) -> str:
    return str(ExportMetricsServiceRequest.FromString(payload))


def admission(key: ExperimentKey, _team: str) -> tuple[Refusal, str] | None:
    return (Refusal.NOT_ALLOWED, "no") if key.experiment == "two" else None


def accepted(payload: bytes, limits: ReceiveLimits) -> object:
    try:
        return outcome(validate(Signal.METRICS, payload, limits, NOW_NS, admission))
    except RequestError as error:
        return type(error), str(error)


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_request_of_known_identities_is_accepted_as_if_each_item_were_checked(
    sent: list[bytes],
) -> None:
    for payload in sent:
        new = ReceiveLimits(**BOUNDS)  # nothing was accepted by these
        assert accepted(payload, LIMITS) == accepted(payload, new)


@given(conversations())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_columns_that_were_read_on_receipt_are_those_of_the_stored_bytes(
    sent: list[bytes],
) -> None:
    for payload in sent:
        try:
            found = validate(Signal.METRICS, payload, LIMITS, NOW_NS, admission)
        except RequestError:
            continue
        for batch in found.batches:
            for most in (1_000, 3):
                stored = _spelled([*decode_parts(replace(batch, columns=()), most)])
                assert _spelled([*decode_parts(batch, most)]) == stored
