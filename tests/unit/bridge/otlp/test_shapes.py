"""Shapes of bodies: what has one, and what known ones cost."""

from collections.abc import Callable, Mapping

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Exemplar,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp import known_bodies
from otel_rl.bridge.otlp.decode import decode
from otel_rl.bridge.otlp.known_bodies import read_known
from otel_rl.bridge.otlp.resource import sender_of
from otel_rl.bridge.otlp.shapes import (
    BodyShape,
    CutBody,
    Cuts,
    ShapeCache,
    layout_of,
    resource_parts,
)
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.otlp_requests import backwards, key_values

NS = 1_700_000_000_000_000_000


def point(step: int = 7) -> NumberDataPoint:
    exemplar = Exemplar(time_unix_nano=NS, as_double=0.5)
    exemplar.filtered_attributes.add(key="rl.loop.iteration").value.int_value = step
    return NumberDataPoint(
        start_time_unix_nano=NS - 1, time_unix_nano=NS, as_double=0.5, exemplars=[exemplar]
    )


def body(*points: NumberDataPoint, name: str = "loss", after: bytes = b"") -> bytes:
    part = ResourceMetrics()
    metric = part.scope_metrics.add().metrics.add(name=name)
    metric.gauge.data_points.extend(points or [point()])
    return part.SerializeToString() + after


def _with_attribute(key: str) -> NumberDataPoint:
    found = point()
    found.attributes.add(key=key).value.string_value = "7"
    return found


def _with_exemplars(n: int) -> NumberDataPoint:
    found = point()
    found.exemplars.extend([found.exemplars[0]] * (n - 1))
    return found


def _with_exemplar_attribute(key: str) -> NumberDataPoint:
    found = point()
    found.exemplars[0].filtered_attributes.add(key=key).value.int_value = 1
    return found


def test_a_gauge_has_a_shape_that_reads_its_numbers() -> None:
    sent = body(point(3), point(4))
    layout = layout_of(sent)
    assert layout is not None
    columns, *_, beats_ns = BodyShape(sent, layout).read(sent)
    assert list(columns.steps) == [3, 4]
    assert list(columns.values) == [0.5, 0.5]
    assert list(columns.starts_ns) == [NS - 1, NS - 1]
    assert list(beats_ns) == []


@pytest.mark.parametrize(
    "unusual",
    [
        body(after=b"\x0a\x00"),
        body(after=b"\x78\x01"),
        body(point(-1)),
        body(_with_attribute("rl.loop.iteration")),
        body(_with_exemplars(2)),
        body(_with_exemplar_attribute("x")),
        body(NumberDataPoint(time_unix_nano=NS)),
        body(NumberDataPoint(time_unix_nano=NS, as_double=1, flags=1)),
        body()[:-1],
        body(name="x" * (1 << 16)),
    ],
    ids=[
        "second resource",
        "unknown field",
        "negative step",
        "step of another SDK",
        "two exemplars",
        "another attribute",
        "no value",
        "value and flag",
        "cut off",
        "large",
    ],
)
def test_what_is_unusual_has_no_shape(unusual: bytes) -> None:
    assert layout_of(unusual) is None


@pytest.mark.parametrize(
    "payload", [b"\x12\x00", b"\x0a\x00", b"\x0a\x02\x12\x00", b"\x0a\x05\x0a"]
)
def test_a_request_of_other_fields_has_no_parts(payload: bytes) -> None:
    assert resource_parts(payload) is None


def of_the_collector(**attributes: str) -> bytes:
    part = ResourceMetrics(schema_url="https://schema")
    part.resource.attributes.extend(key_values({"rl.experiment.name": "one", **attributes}))
    scope = part.scope_metrics.add(schema_url="https://schema")
    scope.scope.name = "otel_rl"
    metric = scope.metrics.add(name="loss", unit="1")
    metric.gauge.data_points.extend([point(3), point(4)])
    return backwards(ExportMetricsServiceRequest(resource_metrics=[part]))


def test_fields_may_go_from_the_last_to_the_first() -> None:
    payload = of_the_collector()
    (part,) = resource_parts(payload) or ()
    resource = Resource.FromString(payload[part.resource : part.resource_end])
    assert [pair.key for pair in resource.attributes] == ["rl.experiment.name"]
    sent = payload[part.body : part.body_end]
    layout = layout_of(sent)
    assert layout is not None
    columns, *_ = BodyShape(sent, layout).read(sent)
    assert list(columns.steps) == [3, 4]
    assert list(columns.times_ns) == [NS, NS]


def test_the_points_of_a_collectors_request_are_known_the_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Requests of other tests, none of which came twice, have used up what may be learned in vain.
    monkeypatch.setattr(known_bodies, "_shapes", ShapeCache())
    payload = of_the_collector(**{"telemetry.distro.name": "otel_rl"})
    decode(Batch(ExperimentKey("one"), Signal.METRICS, payload, NS))
    (part,) = resource_parts(payload) or ()
    sender = sender_of(payload[part.resource : part.resource_end])
    read = read_known(sender, payload[part.body : part.body_end], NS)
    assert read is not None
    assert len(read.gauges) == 2


def test_a_resource_between_other_fields_is_none_of_a_part() -> None:
    fields = b"\x0a\x00", b"\x12\x00"
    assert resource_parts(b"\x0a\x04%b%b" % fields) is not None
    assert resource_parts(b"\x0a\x04%b%b" % (*fields[::-1],)) is not None
    assert resource_parts(b"\x0a\x06%b%b%b" % (fields[1], *fields)) is None


def _always(_: BodyShape) -> bool:
    return True


def _counting(calls: list[BodyShape]) -> Callable[[BodyShape], bool]:
    def is_sound(shape: BodyShape) -> bool:
        calls.append(shape)
        return True

    return is_sound


def test_shapes_keep_their_bound_and_those_in_use_stay() -> None:
    cache = ShapeCache(max_bytes=20_000)
    used = body()
    cache.learn(used, _always)
    for n in range(1, 60):
        assert cache.find(used) is not None
        cache.learn(body(name="m" * (10 + n)), _always)
        assert cache.memory_bytes <= 20_000


def test_a_sender_of_new_shapes_only_costs_few_tries() -> None:
    cache, tried = ShapeCache(), list[BodyShape]()
    for n in range(4000):
        cache.learn(body(name=f"m{n:04}"), _counting(tried))
    assert len(tried) < 250


def test_shapes_of_one_length_are_few() -> None:
    cache = ShapeCache()
    for n in range(9):
        cache.learn(body(name=f"m{n}"), _always)
    found = [cache.find(body(name=f"m{n}")) is not None for n in range(9)]
    assert found.count(True) == 4


def _with_histograms(n: int, name: str = "h") -> bytes:
    part = ResourceMetrics()
    scope = part.scope_metrics.add()
    scope.metrics.add(name="loss").gauge.data_points.append(point())
    for _ in range(n):
        scope.metrics.add(name=name).exponential_histogram.data_points.add(count=n)
    return part.SerializeToString()


def test_histograms_are_cut_out_where_they_were_before() -> None:
    cuts = Cuts()
    first, second = _with_histograms(2), _with_histograms(2, name="longer")
    rest, histograms, _ = cuts.anew("a", first)
    found = cuts.again("a", second)
    assert found is not None
    assert found.rest == rest
    assert [Metric.FromString(one.metric).name for one in found.histograms] == ["longer"] * 2
    assert cuts.anew("a", second) == found
    assert len(histograms) == 2


def test_a_body_without_histograms_stays_whole() -> None:
    assert Cuts().anew("a", body()) == CutBody(body(), ())


def test_another_body_is_not_cut_where_a_histogram_was() -> None:
    cuts = Cuts()
    cuts.anew("a", _with_histograms(2))
    assert cuts.again("b", _with_histograms(2)) is None
    assert cuts.again("a", _with_histograms(3)) is None
    assert cuts.again("a", _with_histograms(2)[:-1]) is None
    assert cuts.again("a", _with_histograms(2) + b"\x1a\x00") is None


def test_cuts_keep_their_bound_and_the_last_ones_stay() -> None:
    cuts = Cuts(max_lengths=200)
    for owner in range(99):
        cuts.anew(owner, _with_histograms(owner % 7 + 1))
        assert cuts.lengths <= 200
    assert cuts.again(98, _with_histograms(98 % 7 + 1)) is not None
    assert cuts.again(0, _with_histograms(1)) is None


def a_sum(*marks: Mapping[str, int]) -> bytes:
    """A sum with an exemplar without attributes, and one for each of these."""
    part = ResourceMetrics()
    metric = part.scope_metrics.add().metrics.add(name="tokens")
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    total = metric.sum.data_points.add(start_time_unix_nano=NS - 5, time_unix_nano=NS, as_int=7)
    total.exemplars.add(time_unix_nano=NS - 9, as_int=3)
    for one in marks:
        exemplar = total.exemplars.add(time_unix_nano=NS - 1, as_int=4)
        for key, value in one.items():
            exemplar.filtered_attributes.add(key=key).value.int_value = value
    return part.SerializeToString()


def test_a_sum_has_a_shape_that_reads_its_numbers() -> None:
    of_step = {"rl.loop.iteration": 12, "otel_rl.step.share": 3, "otel_rl.step.duration": 2}
    begun_before = {"rl.loop.iteration": 13, "otel_rl.step.share": NS + 9}
    sent = a_sum(of_step, begun_before)
    layout = layout_of(sent)
    assert layout is not None
    shape = BodyShape(sent, layout)
    _, shares, sums, _ = shape.read(sent)
    assert [list(column) for column in sums] == [[NS - 5], [NS], [7]]
    assert [list(column) for column in shares] == [
        [NS - 4, 0],
        [NS - 3, 0],
        [NS - 1, NS - 1],
        [4, 4],
        [12, 13],
    ]
    assert shape.time_range_ns(sent) == (NS - 9, NS)


@pytest.mark.parametrize("mark", ["otel_rl.step.share", "otel_rl.step.duration", "other"])
def test_a_sum_with_some_of_the_marks_of_a_step_has_no_shape(mark: str) -> None:
    assert layout_of(a_sum({mark: 5})) is None


def test_a_sum_with_the_step_of_another_sdk_has_no_shape() -> None:
    part = ResourceMetrics()
    metric = part.scope_metrics.add().metrics.add(name="tokens")
    point = metric.sum.data_points.add(time_unix_nano=NS, as_int=7)
    point.attributes.add(key="rl.loop.iteration").value.int_value = 5
    assert layout_of(part.SerializeToString()) is None
