"""Shapes of bodies: what has one, and what known ones cost."""

from collections.abc import Callable

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar, NumberDataPoint, ResourceMetrics

from otel_rl.bridge.otlp.shapes import BodyShape, ShapeCache, layout_of, resource_parts

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
    columns, beats_ns = BodyShape(sent, layout).read(sent)
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
