"""Instrumented HTTP services have a handful of keys, however many peers and ports they have."""

from collections.abc import Sequence

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, HistogramPoint, Point
from tests.dialects.decoded import NOW_NS
from tests.dialects.decoded import decoded as decoded_metrics

SERVERS, ROUTES, CLIENTS = 3, 3, 2
CALLS = 20  # as in emitters/http_service.py


@pytest.fixture(scope="module")
def decoded() -> Sequence[Decoded]:
    """Metrics of FastAPI, requests and httpx, 0.66b2: of either conventions, in two processes."""
    return decoded_metrics("http")


@pytest.fixture(scope="module")
def points(decoded: Sequence[Decoded]) -> list[Point]:
    return [point for one in decoded for point in one.points]


def keys_of(points: list[Point]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(point.series.name, point.series.attributes) for point in points}


def test_attributes_are_method_route_and_status_class(points: list[Point]) -> None:
    of_durations = {
        tuple(value for _, value in attributes)
        for name, attributes in keys_of(points)
        if name in {"http.server.duration", "http.server.request.duration"}
    }
    assert of_durations == {
        ("GET", "2xx", "/items/{number}"),
        ("POST", "2xx", "/generate"),
        ("GET", "4xx"),
    }


def test_no_peer_or_port_is_in_a_key(points: list[Point]) -> None:
    keys = keys_of(points)
    assert len({name for name, _ in keys}) == 9
    assert len(keys) == 24
    assert not [key for key in keys if "127.0.0.1" in str(key) or "1810" in str(key)]


def test_every_call_is_counted(points: list[Point]) -> None:
    assert len({point.series for point in points}) == len(points) == 66
    calls = sum(
        point.count
        for point in points
        if isinstance(point, HistogramPoint) and point.series.name == "http.server.request.duration"
    )
    assert calls == SERVERS * ROUTES * CLIENTS * CALLS


def test_rows_have_a_handful_of_keys(decoded: Sequence[Decoded]) -> None:
    aligner = Run(AlignSettings())
    for one in decoded:
        aligner.add(one, received_ns=NOW_NS)
    rows = aligner.close(NOW_NS, everything=True)
    counts = {
        key: value
        for row in rows
        for key, value in row.values.items()
        if "/server/duration/" in key and key.endswith("/count")
    }
    base = "service/http/server/duration"
    assert counts == {
        f"{base}/GET/2xx/items/{{number}}/count": SERVERS * CLIENTS * CALLS,
        f"{base}/GET/4xx/count": SERVERS * CLIENTS * CALLS,
        f"{base}/POST/2xx/generate/count": SERVERS * CLIENTS * CALLS,
    }
