"""What a sender writes is kept, if it is, only as far as the limits let it: no cache is longer."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.otlp import identities
from otel_rl.bridge.otlp.exemplars import read_exemplars
from otel_rl.bridge.otlp.identities import identified
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.errors import OtelRLError
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.semconv.spec import Instrument
from tests.support.doors import decode
from tests.support.otlp_requests import delimited, gauge, key_values, metrics_request, trace_request

NOW_NS = 1_800_000_000_000_000_000


def kept_bytes(use: Callable[[int], object], times: int) -> int:
    """What stays in memory of so many different uses."""
    use(0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, times + 1):
            use(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def sound_point() -> NumberDataPoint:
    return NumberDataPoint(as_double=1.0, time_unix_nano=NOW_NS)


def long_text(number: int, size: int = 1 << 20) -> str:
    return f"{number:08d}" + "x" * size


def with_metric_name(number: int) -> bytes:
    return metrics_request(gauge(sound_point(), name=long_text(number))).SerializeToString()


def with_unit(number: int) -> bytes:
    metric = gauge(sound_point())
    metric.unit = long_text(number)
    return metrics_request(metric).SerializeToString()


def with_scope(number: int) -> bytes:
    request = metrics_request(gauge(sound_point()))
    request.resource_metrics[0].scope_metrics[0].scope.name = long_text(number)
    return request.SerializeToString()


def with_version(number: int) -> bytes:
    request = metrics_request(gauge(sound_point()))
    request.resource_metrics[0].scope_metrics[0].scope.version = long_text(number)
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_metric_name, Refusal.INVALID_METRIC_NAME),
        (with_unit, Refusal.INVALID_METRIC_NAME),
        (with_scope, Refusal.ATTRIBUTE_TOO_LONG),
        (with_version, Refusal.ATTRIBUTE_TOO_LONG),
    ],
)
def test_a_text_of_a_mebibyte_is_refused_and_nothing_of_it_is_kept(
    make: Callable[[int], bytes], reason: Refusal
) -> None:
    def send(number: int) -> None:
        admitted = validate(Signal.METRICS, make(number), ReceiveLimits(), NOW_NS)
        assert admitted.refused == {reason: 1}
        assert len(admitted.message) < 1000

    assert kept_bytes(send, 8) < 1 << 20


def test_an_id_of_a_mebibyte_is_not_spelled_out() -> None:
    def send(number: int) -> None:
        request = trace_request(1)
        span = request.resource_spans[0].scope_spans[0].spans[0]
        span.trace_id = long_text(number).encode()
        admitted = validate(Signal.TRACES, request.SerializeToString(), ReceiveLimits(), NOW_NS)
        assert admitted.refused == {Refusal.INVALID_ID: 1}

    assert kept_bytes(send, 8) < 1 << 20


# Below, each text is as long as the default limits let it be.


def test_exemplars_with_long_attributes_leave_nothing_behind() -> None:
    def read(number: int) -> None:
        point = NumberDataPoint()
        exemplar = point.exemplars.add(as_double=1.0, time_unix_nano=NOW_NS)
        exemplar.filtered_attributes.extend(key_values({"k": long_text(number, 4000)}))
        read_exemplars([exemplar.SerializeToString()])

    assert kept_bytes(read, 1000) < 1 << 20


def test_long_resources_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_MAX_BYTES", 16 << 20)

    def read(number: int) -> None:
        named = {f"attribute.{place}": long_text(number, 4000) for place in range(7)}
        request = metrics_request(resource={"rl.experiment.name": "x", **named})
        identified(request.resource_metrics[0].resource.SerializeToString())

    # Nearly 200 of 28 kB each.
    assert kept_bytes(read, 1000) < 16 << 20


@pytest.mark.parametrize("attributes", [0, 1, 3])
def test_short_identities_are_remembered_up_to_a_bound(
    attributes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_MAX_BYTES", 4 << 20)

    def read(number: int) -> None:
        resource = metrics_request(resource={"service.instance.id": str(number)})
        found = identified(resource.resource_metrics[0].resource.SerializeToString())
        scope = found.scope(b"")
        for place in range(10):
            texts = {f"{key}": f"{number}-{place}" for key in range(attributes)}
            pairs = tuple(one.SerializeToString() for one in key_values(texts))
            scope.identity(f"m{place}", "s", Instrument.GAUGE, "", pairs)
        identities.measure(found)

    # What it counts of so many short objects is an estimate.
    assert kept_bytes(read, 2000) < 5 << 20


def test_unknown_fields_of_a_resource_leave_nothing_behind() -> None:
    resource = metrics_request().resource_metrics[0].resource.SerializeToString()

    def read(number: int) -> None:
        identified(resource + delimited(0x7A, long_text(number).encode()))

    assert kept_bytes(read, 40) < 1 << 20


@pytest.mark.slow
def test_series_with_long_attributes_are_remembered_up_to_a_few_mebibytes() -> None:
    def read(number: int) -> None:
        point = sound_point()
        point.attributes.extend(key_values({"a": long_text(number, 4000), "b": "x" * 3900}))
        payload = metrics_request(gauge(point)).SerializeToString()
        decode(Batch(ExperimentKey("x"), Signal.METRICS, payload, NOW_NS))

    # 1,024 of 8 kB each, as they came and as text
    assert kept_bytes(read, 3000) < 32 << 20


def test_no_error_holds_what_was_sent() -> None:
    with pytest.raises(OtelRLError) as caught:
        validate(Signal.METRICS, b"\xff" * (1 << 20), ReceiveLimits(), NOW_NS)
    assert len(str(caught.value)) < 1000
