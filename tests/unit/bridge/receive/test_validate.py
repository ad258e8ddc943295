"""What is taken of a request, what is refused, and what its sender is told."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.signal_specs import ExportRequest
from otel_rl.bridge.receive.validate import Validated, validate
from otel_rl.errors import MalformedRequest, RequestTooLarge
from otel_rl.records import ExperimentKey, Signal
from tests.support.otlp_requests import (
    Attributes,
    delimited,
    event,
    gauge,
    key_values,
    logs_request,
    metrics_request,
    trace_request,
)

NOW_NS = 1_800_000_000_000_000_000
S = 1_000_000_000
LIMITS = ReceiveLimits()


def admit_metrics(
    request: ExportMetricsServiceRequest, limits: ReceiveLimits = LIMITS
) -> Validated:
    return validate(Signal.METRICS, request.SerializeToString(), limits, NOW_NS)


def point(value: float = 1.0, time_ns: int = NOW_NS) -> NumberDataPoint:
    return NumberDataPoint(as_double=value, time_unix_nano=time_ns)


def sound_request() -> ExportMetricsServiceRequest:
    return metrics_request(gauge(point()))


def kept(admitted: Validated) -> ExportMetricsServiceRequest:
    (batch,) = admitted.batches
    return ExportMetricsServiceRequest.FromString(batch.payload)


def kept_values(admitted: Validated) -> list[float]:
    return [
        kept_point.as_double
        for resource_metrics in kept(admitted).resource_metrics
        for scope_metrics in resource_metrics.scope_metrics
        for metric in scope_metrics.metrics
        for kept_point in metric.gauge.data_points
    ]


def test_sound_request_keeps_its_very_bytes() -> None:
    payload = sound_request().SerializeToString() + b"\xba\x3e\x03new"  # an unknown field 999
    admitted = validate(Signal.METRICS, payload, LIMITS, NOW_NS)
    assert admitted.batches[0].payload is payload
    assert (admitted.accepted, admitted.refused, admitted.message) == (1, {}, "")


def test_message_is_taken_as_well_as_bytes() -> None:
    request = sound_request()
    admitted = validate(Signal.METRICS, request, LIMITS, NOW_NS)
    assert kept(admitted) == sound_request()


def test_an_exemplar_that_is_no_protobuf_makes_the_request_malformed() -> None:
    carrier = point()
    carrier.exemplars.add(as_double=1.0, time_unix_nano=NOW_NS)
    sound = metrics_request(gauge(carrier)).SerializeToString()
    tag_of_the_value = sound.index(b"\x19")
    damaged = sound[:tag_of_the_value] + b"\x1b" + sound[tag_of_the_value + 1 :]
    with pytest.raises(MalformedRequest, match="not a protobuf Export"):
        validate(Signal.METRICS, damaged, LIMITS, NOW_NS)


def test_empty_request_leaves_nothing_to_keep() -> None:
    assert admit_metrics(ExportMetricsServiceRequest()) == Validated([], 0)


def test_metric_without_data_is_accepted_and_ignored() -> None:
    admitted = admit_metrics(metrics_request(Metric(name="empty"), gauge(point())))
    assert (admitted.accepted, admitted.refused) == (1, {})
    assert len(kept(admitted).resource_metrics[0].scope_metrics[0].metrics) == 2


@pytest.mark.parametrize("kind", ["gauge", "sum"])
def test_a_point_without_a_value_is_refused_and_not_taken_for_0(kind: str) -> None:
    metric = Metric(name="loss")
    points = getattr(metric, kind).data_points
    points.add(time_unix_nano=NOW_NS)
    points.add(time_unix_nano=NOW_NS, as_int=0)
    # Says itself that it has none.
    points.add(time_unix_nano=NOW_NS, flags=1)
    admitted = admit_metrics(metrics_request(metric))
    assert (admitted.accepted, admitted.refused) == (2, {Refusal.NO_VALUE: 1})
    assert "loss" in admitted.message


class TestExperiment:
    def test_resource_without_experiment_is_refused_and_told_how_to_name_one(self) -> None:
        admitted = admit_metrics(
            metrics_request(gauge(point(), point()), resource={"service.name": "trainer"})
        )
        assert admitted.batches == []
        assert admitted.refused == {Refusal.NO_EXPERIMENT: 2}
        assert "rl.experiment.name" in admitted.message
        assert "OTEL_RESOURCE_ATTRIBUTES" in admitted.message

    def test_default_experiment_is_written_into_the_resource(self) -> None:
        limits = ReceiveLimits(default_experiment="lab")
        admitted = admit_metrics(metrics_request(gauge(point()), resource={}), limits)
        assert admitted.refused == {}
        attributes = kept(admitted).resource_metrics[0].resource.attributes
        assert list(attributes) == key_values({"rl.experiment.name": "lab"})

    def test_default_experiment_leaves_a_named_one_alone(self) -> None:
        payload = sound_request().SerializeToString()
        limits = ReceiveLimits(default_experiment="lab")
        assert validate(Signal.METRICS, payload, limits, NOW_NS).batches[0].payload is payload

    @pytest.mark.parametrize("key", ["rl.experiment.name", "rl.trial.name", "rl.worker.role"])
    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            ("", "is empty"),
            (" \t ", "is empty"),
            ("x" * 129, "is over 128 characters"),
            ("a\nb", "control characters"),
            ("a\x00b", "control characters"),
            ("a\x9bb", "control characters"),
            ("a\u2028b", "control characters"),
            ("a\u202eb", "control characters"),  # turns what follows around
            ("a\u200bb", "control characters"),  # is not seen
            ("\ufeffa", "control characters"),
            (7, "is not a string"),
        ],
    )
    def test_unusable_name_is_refused_and_named(
        self, key: str, name: str | int, fault: str
    ) -> None:
        resource: Attributes = {"rl.experiment.name": "x", key: name}
        admitted = admit_metrics(metrics_request(gauge(point()), resource=resource))
        assert admitted.refused == {Refusal.INVALID_NAME: 1}
        assert f"Resource attribute {key} {fault}" in admitted.message or fault in admitted.message

    @pytest.mark.parametrize("name", ["x", "x" * 128, "实验 7", "a/b:c?", "..", "🧪"])
    def test_any_other_name_is_taken(self, name: str) -> None:
        resource = {"rl.experiment.name": name, "rl.worker.role": name}
        assert admit_metrics(metrics_request(gauge(point()), resource=resource)).refused == {}


Place = Callable[[dict[str, str | int]], ExportMetricsServiceRequest]


def on_resource(attributes: dict[str, str | int]) -> ExportMetricsServiceRequest:
    return metrics_request(gauge(point()), resource={"rl.experiment.name": "x", **attributes})


def on_scope(attributes: dict[str, str | int]) -> ExportMetricsServiceRequest:
    request = sound_request()
    scope = request.resource_metrics[0].scope_metrics[0].scope
    scope.attributes.extend(key_values(attributes))
    return request


def on_point(attributes: dict[str, str | int]) -> ExportMetricsServiceRequest:
    crowded = point()
    crowded.attributes.extend(key_values(attributes))
    return metrics_request(gauge(crowded))


def on_exemplar(attributes: dict[str, str | int]) -> ExportMetricsServiceRequest:
    carrier = point()
    exemplar = carrier.exemplars.add(time_unix_nano=NOW_NS)
    exemplar.filtered_attributes.extend(key_values(attributes))
    return metrics_request(gauge(carrier))


PLACES = [on_resource, on_scope, on_point, on_exemplar]


def refusals(place: Place, attributes: dict[str, str | int]) -> dict[Refusal, int]:
    admitted = admit_metrics(place(attributes))
    return {**admitted.refused, **admitted.exemplars_refused}


class TestAttributes:
    @pytest.mark.parametrize(
        ("place", "limit"), [(on_resource, 127), (on_scope, 64), (on_point, 64), (on_exemplar, 64)]
    )
    def test_as_many_as_the_limit_are_taken_and_one_more_is_refused(
        self, place: Place, limit: int
    ) -> None:
        attributes: dict[str, str | int] = {f"k{i}": i for i in range(limit)}
        assert refusals(place, attributes) == {}
        assert refusals(place, attributes | {"more": 1}) == {Refusal.TOO_MANY_ATTRIBUTES: 1}

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("letter", ["k", "é", "键"])
    def test_key_is_measured_in_utf8(self, place: Place, letter: str) -> None:
        longest = letter * (256 // len(letter.encode()))
        assert refusals(place, {longest: 1}) == {}
        assert refusals(place, {longest + letter: 1}) == {Refusal.ATTRIBUTE_TOO_LONG: 1}

    @pytest.mark.parametrize("place", PLACES)
    def test_value_over_4_kib_is_refused(self, place: Place) -> None:
        assert refusals(place, {"note": "v" * 4000}) == {}
        assert refusals(place, {"note": "v" * 4097}) == {Refusal.ATTRIBUTE_TOO_LONG: 1}

    @pytest.mark.parametrize(
        ("place", "n"), [(on_resource, 8), (on_scope, 2), (on_point, 2), (on_exemplar, 2)]
    )
    def test_all_together_are_measured_too(self, place: Place, n: int) -> None:
        attributes: dict[str, str | int] = {f"note{i}": "v" * 4000 for i in range(n)}
        assert refusals(place, attributes) == {}
        attributes |= {f"more{i}": "v" * 200 for i in range(5)}
        assert refusals(place, attributes) == {Refusal.ATTRIBUTE_TOO_LONG: 1}

    def test_message_names_the_attribute_and_a_way_out(self) -> None:
        message = admit_metrics(on_point({"prompt": "v" * 5000})).message
        assert "A point of metric loss has an attribute 'prompt'" in message
        assert "Shorten it." in message

    def test_nested_value_is_measured_whole(self) -> None:
        nested = point()
        values = nested.attributes.add(key="list").value.array_value.values
        for _ in range(1000):
            values.add().string_value = "abcdef"
        admitted = admit_metrics(metrics_request(gauge(nested, point(2))))
        assert admitted.refused == {Refusal.ATTRIBUTE_TOO_LONG: 1}
        assert kept_values(admitted) == [2]

    def test_duplicate_and_empty_keys_are_taken(self) -> None:
        odd = point()
        odd.attributes.extend(key_values({"": 1, "a": 1}) + key_values({"a": 2}))
        assert admit_metrics(metrics_request(gauge(odd))).refused == {}


class TestTime:
    @pytest.mark.parametrize(
        ("time_ns", "is_taken"),
        [
            (0, True),
            (1, False),
            (NOW_NS - 14 * 86_400 * S, True),
            (NOW_NS - 14 * 86_400 * S - 1, False),
            (NOW_NS, True),
            (NOW_NS + 600 * S, True),
            (NOW_NS + 600 * S + 1, False),
            (2**64 - 1, False),
        ],
    )
    def test_points_exemplars_and_spans_are_near_now_or_of_unknown_time(
        self, time_ns: int, is_taken: bool
    ) -> None:
        refused = {} if is_taken else {Refusal.TIME_OUT_OF_RANGE: 1}
        assert admit_metrics(metrics_request(gauge(point(time_ns=time_ns)))).refused == refused
        carrier = point()
        carrier.exemplars.add(time_unix_nano=time_ns)
        assert admit_metrics(metrics_request(gauge(carrier))).exemplars_refused == refused
        traces = trace_request()
        span = traces.resource_spans[0].scope_spans[0].spans[0]
        span.start_time_unix_nano, span.end_time_unix_nano = NOW_NS, time_ns
        admitted = validate(Signal.TRACES, traces.SerializeToString(), LIMITS, NOW_NS)
        assert admitted.refused == refused

    def test_start_of_a_cumulative_point_may_lie_far_back(self) -> None:
        old = point()
        old.start_time_unix_nano = 1
        assert admit_metrics(metrics_request(gauge(old))).refused == {}

    def test_only_the_bad_exemplars_of_a_point_are_left_out(self) -> None:
        carrier = point()
        for i, time_ns in enumerate([NOW_NS, 5, 0, NOW_NS + 10**18]):
            carrier.exemplars.add(as_int=i, time_unix_nano=time_ns)
        admitted = admit_metrics(metrics_request(gauge(carrier)))
        assert (admitted.accepted, admitted.refused) == (1, {})
        assert admitted.exemplars_refused == {Refusal.TIME_OUT_OF_RANGE: 2}
        metric = kept(admitted).resource_metrics[0].scope_metrics[0].metrics[0]
        assert [e.as_int for e in metric.gauge.data_points[0].exemplars] == [0, 2]


class TestNames:
    @pytest.mark.parametrize("name", ["", "  ", "n" * 256, "a\nb"])
    def test_unusable_metric_name_is_refused(self, name: str) -> None:
        admitted = admit_metrics(metrics_request(gauge(point(), name=name), gauge(point(2))))
        assert admitted.refused == {Refusal.INVALID_METRIC_NAME: 1}
        assert kept_values(admitted) == [2]

    def test_long_names_are_shortened_for_the_sender(self) -> None:
        admitted = admit_metrics(metrics_request(gauge(point(time_ns=1), name="é" * 127)))
        assert len(admitted.message.encode()) < 4096
        assert "..." in admitted.message


def histogram(
    counts: list[int], bounds: list[float], *, times: int = 1
) -> ExportMetricsServiceRequest:
    metric = Metric(name="latency")
    for _ in range(times):
        metric.histogram.data_points.add(
            time_unix_nano=NOW_NS, bucket_counts=counts, explicit_bounds=bounds
        )
    return metrics_request(metric)


def exponential(scale: int, offset: int, n_buckets: int) -> ExportMetricsServiceRequest:
    metric = Metric(name="latency")
    scaled = metric.exponential_histogram.data_points.add(scale=scale, time_unix_nano=NOW_NS)
    scaled.positive.offset = offset
    scaled.positive.bucket_counts.extend([1] * n_buckets)
    return metrics_request(metric)


class TestBuckets:
    def test_512_buckets_are_taken_and_513_are_not(self) -> None:
        bounds = [float(i) for i in range(512)]
        assert admit_metrics(histogram([1] * 512, bounds[:-1])).refused == {}
        refused = admit_metrics(histogram([1] * 513, bounds)).refused
        assert refused == {Refusal.TOO_MANY_BUCKETS: 1}

    def test_exponential_buckets_of_both_signs_count_together(self) -> None:
        request = exponential(4, 0, 300)
        metric = request.resource_metrics[0].scope_metrics[0].metrics[0]
        negative = metric.exponential_histogram.data_points[0].negative
        negative.bucket_counts.extend([1] * 300)
        assert admit_metrics(request).refused == {Refusal.TOO_MANY_BUCKETS: 1}

    def test_quantiles_of_a_summary_count_as_buckets(self) -> None:
        metric = Metric(name="latency")
        summary = metric.summary.data_points.add()
        for _ in range(513):
            summary.quantile_values.add()
        assert admit_metrics(metrics_request(metric)).refused == {Refusal.TOO_MANY_BUCKETS: 1}

    @pytest.mark.parametrize(
        ("counts", "bounds"),
        [([1], []), ([], []), ([1, 2], [0.0]), ([0, 0, 0], [-math.inf, math.inf])],
    )
    def test_sound_bounds_are_taken(self, counts: list[int], bounds: list[float]) -> None:
        assert admit_metrics(histogram(counts, bounds)).refused == {}

    @pytest.mark.parametrize(
        ("counts", "bounds"),
        [
            ([1, 2], []),
            ([], [1.0]),
            ([1, 2, 3], [2.0, 1.0]),
            ([1, 2, 3], [1.0, 1.0]),
            ([1, 2, 3], [1.0, math.nan]),
        ],
    )
    def test_bounds_that_say_nothing_are_refused(
        self, counts: list[int], bounds: list[float]
    ) -> None:
        admitted = admit_metrics(histogram(counts, bounds, times=2))
        assert admitted.refused == {Refusal.INVALID_BUCKETS: 2}

    @pytest.mark.parametrize(
        ("scale", "offset", "is_taken"),
        [
            (0, -1075, True),  # 2 ** -1074 is the smallest double
            (0, -1076, False),
            (0, 1022, True),  # the second bucket ends where the doubles end
            (0, 1023, False),
            (20, 2**30 - 2, True),
            (20, 2**30 - 1, False),
            (20, -(2**31), False),
            (-11, -1, True),
            (-11, 0, False),
            (-12, 0, False),
            (21, 0, False),
            (2**31 - 1, 0, False),
            (-(2**31), 0, False),
        ],
    )
    def test_every_exponential_bucket_can_hold_a_double(
        self, scale: int, offset: int, is_taken: bool
    ) -> None:
        refused = {} if is_taken else {Refusal.INVALID_BUCKETS: 1}
        assert admit_metrics(exponential(scale, offset, 2)).refused == refused


def test_4096_exemplars_are_taken_and_4097_are_not() -> None:
    carrier = point()
    for _ in range(4096):
        carrier.exemplars.add(time_unix_nano=NOW_NS)
    assert admit_metrics(metrics_request(gauge(carrier))).refused == {}
    carrier.exemplars.add(time_unix_nano=NOW_NS)
    refused = admit_metrics(metrics_request(gauge(carrier))).refused
    assert refused == {Refusal.TOO_MANY_EXEMPLARS: 1}


class TestSpans:
    @pytest.mark.parametrize("field", ["trace_id", "span_id"])
    @pytest.mark.parametrize("value", [b"", b"short", b"\0" * 8, b"\0" * 16, b"x" * 17])
    def test_span_without_valid_ids_is_refused(self, field: str, value: bytes) -> None:
        request = trace_request(2)
        setattr(request.resource_spans[0].scope_spans[0].spans[0], field, value)
        admitted = validate(Signal.TRACES, request.SerializeToString(), LIMITS, 0)
        assert admitted.refused[Refusal.INVALID_ID] == 1

    def test_spans_of_no_experiment_are_refused(self) -> None:
        request = trace_request(3, resource={})
        admitted = validate(Signal.TRACES, request.SerializeToString(), LIMITS, NOW_NS)
        assert (admitted.batches, admitted.refused) == ([], {Refusal.NO_EXPERIMENT: 3})
        assert "Spans refused: 3" in admitted.message

    def test_128_attributes_are_taken_and_129_are_not(self) -> None:
        request = recent_trace()
        span = request.resource_spans[0].scope_spans[0].spans[0]
        span.attributes.extend(key_values({f"k{i}": i for i in range(128)}))
        assert validate(Signal.TRACES, request.SerializeToString(), LIMITS, NOW_NS).refused == {}
        span.attributes.extend(key_values({"more": 1}))
        refused = validate(Signal.TRACES, request.SerializeToString(), LIMITS, NOW_NS).refused
        assert refused == {Refusal.TOO_MANY_ATTRIBUTES: 1}

    def test_long_value_of_a_span_is_taken(self) -> None:
        request = recent_trace()
        span = request.resource_spans[0].scope_spans[0].spans[0]
        span.attributes.extend(key_values({"exception.stacktrace": "x" * 50_000}))
        assert validate(Signal.TRACES, request.SerializeToString(), LIMITS, NOW_NS).refused == {}


def recent_trace() -> ExportTraceServiceRequest:
    request = trace_request()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.start_time_unix_nano, span.end_time_unix_nano = NOW_NS - 5, NOW_NS
    return request


@pytest.mark.parametrize(
    "change",
    [
        lambda span: setattr(span, "name", "n" * 1025),
        lambda span: setattr(span, "name", "\u00fc" * 513),
        lambda span: span.links.extend([Span.Link(trace_id=b"t" * 16, span_id=b"s" * 8)] * 1025),
        lambda span: span.links.extend([Span.Link()] * 1025),
        lambda span: span.attributes.extend(key_values({"rl.phase": "p" * 129})),
        lambda span: span.attributes.extend(key_values({"rl.phase_class": "p" * 129})),
        lambda span: span.attributes.extend(key_values({"exception": "x" * (1 << 20)})),
        lambda span: span.events.add(name="e" * (1 << 20)),
        lambda span: setattr(span, "trace_state", "s" * (1 << 20)),
    ],
)
def test_a_span_that_is_too_large_is_refused_and_its_sender_told(
    change: Callable[[Span], object],
) -> None:
    request = recent_trace()
    request.resource_spans[0].scope_spans[0].spans.add().CopyFrom(
        request.resource_spans[0].scope_spans[0].spans[0]
    )
    change(request.resource_spans[0].scope_spans[0].spans[0])
    admitted = validate(Signal.TRACES, request, LIMITS, NOW_NS)
    assert admitted.refused == {Refusal.SPAN_TOO_LARGE: 1}
    assert admitted.accepted == 1
    assert "Spans refused: 1 (span_too_large)" in admitted.message


def test_a_span_as_large_as_it_may_be_is_taken() -> None:
    request = recent_trace()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.name = "n" * 1024
    span.links.extend([Span.Link(trace_id=b"t" * 16, span_id=b"s" * 8)] * 1024)
    span.attributes.extend(key_values({"rl.phase": "p" * 128, "stack": "x" * 900_000}))
    assert validate(Signal.TRACES, request, LIMITS, NOW_NS).accepted == 1


def test_a_parent_of_more_than_8_bytes_is_refused() -> None:
    request = recent_trace()
    request.resource_spans[0].scope_spans[0].spans[0].parent_span_id = b"p" * 9
    assert validate(Signal.TRACES, request, LIMITS, NOW_NS).refused == {Refusal.INVALID_ID: 1}


def test_message_holds_one_sentence_for_each_reason() -> None:
    request = metrics_request(gauge(point(time_ns=1), point(time_ns=2), point()))
    request.MergeFrom(metrics_request(gauge(point()), resource={}))
    message = admit_metrics(request).message
    assert message.count("Data points refused: 2 (time_out_of_range)") == 1
    assert message.count("Data points refused: 1 (no_experiment)") == 1


def test_request_of_more_messages_than_the_limit_is_too_large() -> None:
    limits = ReceiveLimits(max_messages_per_request=10)
    with pytest.raises(RequestTooLarge):
        admit_metrics(metrics_request(gauge(*[point()] * 10)), limits)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),  # has an experiment
            st.lists(st.sampled_from([0, 5, NOW_NS, NOW_NS + 700 * S]), max_size=6),
        ),
        max_size=6,
    )
)
def test_every_point_is_either_kept_or_counted_as_refused(
    resources: list[tuple[bool, list[int]]],
) -> None:
    request = ExportMetricsServiceRequest()
    sound = 0
    for has_experiment, times_ns in resources:
        metric = Metric(name="loss")
        metric.gauge.data_points.extend(point(time_ns=time_ns) for time_ns in times_ns)
        resource = {"rl.experiment.name": "x"} if has_experiment else {}
        request.MergeFrom(metrics_request(metric, resource=resource))
        sound += sum(has_experiment and time_ns in (0, NOW_NS) for time_ns in times_ns)
    admitted = admit_metrics(request)
    total = sum(len(times_ns) for _, times_ns in resources)
    assert admitted.accepted == sound
    assert admitted.accepted + sum(admitted.refused.values()) == total
    assert len(kept_values(admitted)) == sound if sound else not admitted.batches
    assert bool(admitted.message) == bool(admitted.refused)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 5, NOW_NS]), min_size=1, max_size=6))
def test_what_was_admitted_is_admitted_again_untouched(times_ns: list[int]) -> None:
    request = metrics_request(gauge(*[point(time_ns=time_ns) for time_ns in times_ns]))
    first = admit_metrics(request)
    for batch in first.batches:
        again = validate(Signal.METRICS, batch.payload, LIMITS, NOW_NS)
        assert (again.batches, again.refused) == ([batch], {})


def test_a_request_is_cut_into_one_batch_for_each_experiment() -> None:
    request = ExportMetricsServiceRequest()
    for value, name in enumerate(("a", "b", "a")):
        request.MergeFrom(
            metrics_request(gauge(point(value)), resource={"rl.experiment.name": name})
        )
    admitted = admit_metrics(request)
    found = {
        batch.experiment.experiment: kept_values(replace(admitted, batches=[batch]))
        for batch in admitted.batches
    }
    assert found == {"a": [0, 2], "b": [1]}


def test_an_experiment_that_is_not_welcome_is_refused_and_the_others_are_taken() -> None:
    request = ExportMetricsServiceRequest()
    for name in ("a", "b"):
        request.MergeFrom(metrics_request(gauge(point()), resource={"rl.experiment.name": name}))

    def only_a(key: ExperimentKey, _team: str) -> tuple[Refusal, str] | None:
        return None if key.experiment == "a" else (Refusal.INVALID_NAME, f"{key} is not a")

    admitted = validate(Signal.METRICS, request, LIMITS, NOW_NS, only_a)
    assert [batch.experiment.experiment for batch in admitted.batches] == ["a"]
    assert admitted.refused == {Refusal.INVALID_NAME: 1}
    assert "b/default is not a" in admitted.message


def test_an_exemplar_that_is_too_large_to_be_sound_is_refused_unparsed() -> None:
    carrier = point()
    sound, huge = (carrier.exemplars.add(as_double=n, time_unix_nano=NOW_NS) for n in range(2))
    for _ in range(200_000):
        huge.filtered_attributes.add()
    request = metrics_request(gauge(carrier))
    admitted = admit_metrics(request)
    assert admitted.exemplars_refused == {Refusal.ATTRIBUTE_TOO_LONG: 1}
    assert "An exemplar of metric loss has 400" in admitted.message
    (stored,) = kept(admitted).resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert [exemplar.as_double for exemplar in stored.exemplars] == [sound.as_double]


@pytest.mark.parametrize("signal", Signal)
def test_points_spans_and_records_are_bounded_before_they_are_looked_at(signal: Signal) -> None:
    limits = ReceiveLimits(max_points_per_request=5)

    def request(n: int) -> ExportRequest:
        if signal is Signal.TRACES:
            return trace_request(n)
        if signal is Signal.LOGS:
            return logs_request(*[event() for _ in range(n)])
        return metrics_request(gauge(*[point() for _ in range(n - 2)]), gauge(point(), point()))

    now_ns = NOW_NS if signal is Signal.METRICS else time.time_ns()
    assert validate(signal, request(5), limits, now_ns).accepted == 5
    with pytest.raises(RequestTooLarge, match="more than 5 data points, spans or log records"):
        validate(signal, request(6), limits, now_ns)


@pytest.mark.parametrize(
    "tags", [b"", b"\x12", b"\x12\x12"], ids=["resources", "scopes", "metrics"]
)
def test_what_holds_points_is_bounded_as_they_are(tags: bytes) -> None:
    limits = ReceiveLimits(max_points_per_request=9)

    def request(n: int) -> bytes:
        if not tags:
            return b"\x0a\x00" * n
        payload = b"\x12\x00" * (n - len(tags))
        for tag in (*reversed(tags[1:]), 0x0A):
            payload = delimited(tag, payload)
        return payload

    assert validate(Signal.METRICS, request(9), limits, NOW_NS).accepted == 0
    with pytest.raises(RequestTooLarge, match="more than 9 resources, scopes and metrics"):
        validate(Signal.METRICS, request(10), limits, NOW_NS)


def marked(**more: str) -> ExportMetricsServiceRequest:
    resource: Attributes = {"nemo.run.id": "77", "rl.worker_group": "lm_policy"}
    return metrics_request(gauge(point()), resource={**resource, **more})


def test_a_process_of_a_known_program_needs_no_experiment() -> None:
    (batch,) = admit_metrics(marked()).batches
    assert batch.experiment == ExperimentKey("nemo", "77")


def test_the_default_experiment_comes_before_that_of_a_program() -> None:
    limits = LIMITS.model_copy(update={"default_experiment": "mine"})
    (batch,) = admit_metrics(marked(), limits).batches
    assert batch.experiment == ExperimentKey("mine", "77")


def test_a_named_experiment_comes_before_that_of_a_program() -> None:
    named = {"rl.experiment.name": "mine", "rl.trial.name": "one"}
    (batch,) = admit_metrics(marked(**named)).batches
    assert batch.experiment == ExperimentKey("mine", "one")


def test_a_programs_run_id_that_is_no_name_is_refused_with_its_attribute() -> None:
    admitted = admit_metrics(marked(**{"nemo.run.id": "7\n7"}))
    assert admitted.refused == {Refusal.INVALID_NAME: 1}
    assert "rl.trial.name" in admitted.message
    assert "control characters" in admitted.message
