"""One pass by column says what decoding each point says."""

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings

from otel_rl.bridge.ingest.parsing.otlp_json import parse_json
from otel_rl.bridge.otlp.columns import decoded_parts, read_resources
from otel_rl.bridge.otlp.decode import decode
from otel_rl.records import Batch, Decoded, ExperimentKey, Measurements, Signal
from tests.dialects.replay import requests
from tests.fuzz.corpus import Seed, corpus
from tests.property.test_request_shapes import NOW_NS, conversations
from tests.slow import examples

DIALECTS = Path("tests/dialects")


def _spelled(parts: list[Decoded]) -> tuple[list[str], str]:
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
    return sorted(map(repr, points)), repr(parts[-1].exports)


def _by_columns(payload: bytes, most: int = 1_000) -> tuple[list[str], str] | None:
    try:
        return _spelled([*decoded_parts(read_resources(payload, NOW_NS), most)])
    except DecodeError:
        return None


def _by_points(payload: bytes) -> tuple[list[str], str] | None:
    try:
        return _spelled([decode(Batch(ExperimentKey("one"), Signal.METRICS, payload, NOW_NS))])
    except DecodeError:
        return None


@given(conversations())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_columns_say_what_decoding_says(sent: list[bytes]) -> None:
    for payload in sent:
        expected = _by_points(payload)
        assert _by_columns(payload) == expected
        assert _by_columns(payload, 3) == expected


@pytest.mark.parametrize("seed", [one for one in corpus(NOW_NS) if one.signal is Signal.METRICS])
def test_columns_of_what_senders_make_say_what_decoding_says(seed: Seed) -> None:
    assert _by_columns(seed.protobuf) == _by_points(seed.protobuf)


@pytest.mark.parametrize("name", sorted(one.stem for one in DIALECTS.glob("*.jsonl")))
def test_columns_of_recordings_say_what_decoding_says(name: str) -> None:
    for path, body in requests(name, NOW_NS):
        if path.endswith(Signal.METRICS.value):
            payload = parse_json(Signal.METRICS, body, max_objects=100_000).SerializeToString()
            assert _by_columns(payload) == _by_points(payload)
