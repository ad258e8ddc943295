"""Stamps from where samples are made to where they are used."""

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import propagate, trace
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.api import lineage
from otel_rl.worker.drops import DropReason
from tests.support.otlp_sink import Sink, pairs


@dataclasses.dataclass
class Rollout:
    tokens: list[int]
    otel_rl: str = ""


@dataclasses.dataclass(frozen=True)
class Frozen:
    tokens: list[int]


def span_named(sink: Sink, name: str) -> Span:
    assert otel_rl.flush(timeout_s=60)
    (found,) = [
        span
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == name
    ]
    return found


def made(n: int, *, version: int = 7) -> list[str]:
    """Stamps of samples that were made in spans of their own, one after another."""
    stamps = []
    for _ in range(n):
        with otel_rl.phase("generate"):
            stamps.append(lineage.stamp(policy_version=version))
    return stamps


def linked(sink: Sink, items: object, **options: int) -> Span:
    """The span in which ``items`` are used."""
    with otel_rl.step(12), otel_rl.phase("train"):
        lineage.link(items, **options)
    return span_named(sink, "rl.train")


def ids(stamps: Sequence[str]) -> set[bytes]:
    return {bytes.fromhex(stamp.split("-")[2]) for stamp in stamps}


def ages(sink: Sink, name: str) -> dict[object, float]:
    assert otel_rl.flush(timeout_s=60)
    return {m.attributes["rl.statistic"]: m.value for m in sink.measurements(name)}


def test_a_span_links_to_those_in_which_its_samples_were_made(started: Sink) -> None:
    stamps = made(3)
    span = linked(started, stamps)
    assert {link.span_id for link in span.links} == ids(stamps)
    said = pairs(span.attributes)
    assert (said["rl.sample.count"], said["rl.sample.origins"]) == (3, 3)


@pytest.mark.parametrize("kind", ["dict", "dataclass", "list", "nested", "array", "bytes"])
def test_stamps_are_found_in_whatever_samples_are_kept_in(started: Sink, kind: str) -> None:
    with otel_rl.phase("generate"):
        stamp = lineage.stamp()
        items: object = {
            "dict": lineage.inject({"tokens": [1]}),
            "dataclass": lineage.inject(Rollout([1])),
            "list": [stamp, stamp],
            "nested": {"otel_rl": ([stamp], (lineage.inject({"tokens": [1]}),))},
            "array": np.array([[stamp, stamp]]),
            "bytes": np.array([stamp.encode()]),
        }[kind]
    assert {link.span_id for link in linked(started, items).links} == ids([stamp])


class OnDevice:
    """A tensor on a device: to read one of its elements is to wait for all that is queued there."""

    device = SimpleNamespace(type="cuda")
    dtype = object()
    is_cuda = True

    def _waits(self, *_: object) -> None:
        raise AssertionError("the device was waited for")

    tolist = item = cpu = numpy = __iter__ = __len__ = __getitem__ = __array__ = _waits


def test_a_tensor_on_a_device_is_not_read(started: Sink) -> None:
    with otel_rl.phase("generate"):
        stamp = lineage.stamp()
    items = {"otel_rl": [OnDevice(), stamp, {"tokens": OnDevice()}, OnDevice()]}
    before = session.GUARD.drops.counts().get(DropReason.INTERNAL, 0)
    assert {link.span_id for link in linked(started, items).links} == ids([stamp])
    lineage.link(OnDevice())
    lineage.link_weights([OnDevice(), stamp])
    assert session.GUARD.drops.counts().get(DropReason.INTERNAL, 0) == before


def test_an_array_of_numbers_has_no_stamps_and_is_not_copied(started: Sink) -> None:
    class Tokens(np.ndarray[Any, Any]):
        def tolist(self) -> Any:
            raise AssertionError("copied")

    before = session.GUARD.drops.counts().get(DropReason.INTERNAL, 0)
    lineage.link([np.zeros(3).view(Tokens), np.array([True]).view(Tokens)])
    assert session.GUARD.drops.counts().get(DropReason.INTERNAL, 0) == before


def test_injecting_returns_the_item_itself(started: Sink) -> None:
    sample = {"tokens": [1]}
    assert lineage.inject(sample) is sample


@pytest.mark.parametrize("item", [Frozen([1]), MappingProxyType({}), 7, (1, 2)])
def test_what_takes_no_stamp_is_left_as_it_is_and_counted(started: Sink, item: object) -> None:
    before = session.GUARD.drops.counts().get(DropReason.NO_STAMP, 0)
    assert lineage.inject(item) is item
    assert session.GUARD.drops.counts()[DropReason.NO_STAMP] == before + 1


def test_samples_without_a_stamp_say_nothing(started: Sink) -> None:
    span = linked(started, [{"tokens": [1]}, None, 7, "no stamp", ""])
    assert list(span.links) == []
    assert pairs(span.attributes)["rl.sample.count"] == 0


def test_of_many_origins_the_latest_and_some_of_the_rest_are_linked(started: Sink) -> None:
    stamps = made(200)
    span = linked(started, stamps)
    found = {link.span_id for link in span.links}
    assert len(found) == 64
    assert ids(stamps[-32:]) <= found
    assert pairs(span.attributes)["rl.sample.origins"] == 200


def test_the_age_of_samples_is_measured_in_versions_steps_and_seconds(started: Sink) -> None:
    stamps = [lineage.stamp(policy_version=version, step=version) for version in (4, 6, 8)]
    linked(started, stamps, policy_version=10)
    assert ages(started, "rl.sample.age.versions") == {
        "mean": 4,
        "min": 2,
        "max": 6,
        "p50": 4,
        "p99": 6,
    }
    assert ages(started, "rl.sample.age.steps")["mean"] == 6
    assert 0 <= ages(started, "rl.sample.age.duration")["max"] < 60
    measured = started.measurements("rl.sample.age.versions")
    assert {measurement.step for measurement in measured} == {12}


def test_an_age_that_one_side_does_not_know_is_not_measured(started: Sink) -> None:
    linked(started, [lineage.stamp()], policy_version=10)
    assert ages(started, "rl.sample.age.versions") == {}
    assert ages(started, "rl.sample.age.steps") == {}


def values(sink: Sink, name: str) -> list[tuple[float, int | None]]:
    assert otel_rl.flush(timeout_s=60)
    return [(m.value, m.step) for m in sink.measurements(name)]


def points(sink: Sink, name: str) -> list[ExponentialHistogramDataPoint]:
    return [
        point
        for request in sink.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.exponential_histogram.data_points
    ]


def scored(reward: object, length: int | None = None, *, version: int = 7) -> str:
    return lineage.score(lineage.stamp(policy_version=version), reward=reward, length=length)


def test_rewards_lengths_and_staleness_of_the_samples_trained_on_are_figures_of_the_step(
    started: Sink,
) -> None:
    produced = [scored(reward, length) for reward, length in ((-1, 10), (0, 20), (4, 60), (9, 90))]
    linked(started, produced[:3], policy_version=9)
    found = {
        figure: values(started, f"rl.{figure}")
        for figure in ("reward.mean", "reward.min", "reward.max", "episode.length")
    }
    assert found == {
        "reward.mean": [(1.0, 12)],
        "reward.min": [(-1.0, 12)],
        "reward.max": [(4.0, 12)],
        "episode.length": [(30.0, 12)],
    }
    ((deviation, _),) = values(started, "rl.reward.std")
    assert deviation == pytest.approx(np.std([-1, 0, 4]))
    assert sorted(values(started, "rl.sample.reward")) == [
        (-1, None), (0, None), (4, None), (9, None),
    ]  # fmt: skip
    assert [
        (exemplar.as_int, pairs(exemplar.filtered_attributes)["rl.loop.iteration"])
        for point in points(started, "rl.policy.staleness")
        for exemplar in point.exemplars
    ] == [(2, 12)] * 3


def test_a_sample_that_is_scored_within_a_step_is_of_the_step(started: Sink) -> None:
    with otel_rl.step(5):
        scored(0.5)
    assert values(started, "rl.sample.reward") == [(0.5, 5)]


def test_one_nan_reward_shows_in_every_figure_of_the_batch(started: Sink) -> None:
    linked(started, [scored(1.0), scored(float("nan")), scored(float("inf"))])
    for figure in ("mean", "min", "max", "std"):
        ((value, _),) = values(started, f"rl.reward.{figure}")
        assert np.isnan(value)


@given(st.floats(), st.none() | st.integers(0, 2**62))
def test_a_scored_stamp_says_reward_length_and_what_it_said_before(
    reward: float, length: int | None
) -> None:
    before = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01;v=7;s=411;t=17"
    text = lineage.score(lineage.score(before, reward=1), reward=reward, length=length)
    origin, original = lineage.read(text), lineage.read(before)
    assert origin is not None
    assert original is not None
    assert repr(origin.reward) == repr(reward)
    assert origin.length == length
    assert origin[:4] == original[:4]


def test_a_stamp_with_parts_of_a_later_version_is_read(started: Sink) -> None:
    origin = lineage.read(";v=7;t=17;r=0.5;n=3;q=group-7")
    assert origin == lineage.Origin(None, 7, None, 17, 0.5, 3)


def test_any_item_that_takes_a_stamp_takes_a_reward(started: Sink) -> None:
    for item in (lineage.inject({"tokens": [1]}, policy_version=3), Rollout([1])):
        assert lineage.score(item, reward=np.float32(0.5), length=np.int64(4)) is item
        text = item["otel_rl"] if isinstance(item, dict) else item.otel_rl
        origin = lineage.read(str(text))
        assert origin is not None
        assert (origin.reward, origin.length) == (0.5, 4)


def test_a_reward_that_is_no_number_is_counted_and_the_stamp_stays(started: Sink) -> None:
    before = session.GUARD.drops.counts().get(DropReason.NOT_A_NUMBER, 0)
    stamp = lineage.stamp(policy_version=3)
    assert lineage.score(stamp, reward=np.zeros(2), length=-1) == stamp
    assert session.GUARD.drops.counts()[DropReason.NOT_A_NUMBER] == before + 1


def test_a_stamp_says_the_step_that_it_was_made_in(started: Sink) -> None:
    with otel_rl.step(5):
        assert ";s=5;" in lineage.stamp()


def test_without_a_span_there_is_no_link_and_still_an_age(started: Sink) -> None:
    stamp = lineage.stamp(policy_version=1)
    assert stamp.startswith(";v=1;t=")
    assert list(linked(started, [stamp], policy_version=3).links) == []
    assert ages(started, "rl.sample.age.versions")["max"] == 2


def test_more_samples_than_the_bound_are_counted(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "_MAX_SAMPLES", 10)
    span = linked(started, made(1) * 12)
    assert pairs(span.attributes)["rl.sample.count"] == 10
    assert session.GUARD.drops.counts()[DropReason.TOO_MANY_SAMPLES] >= 1


def test_before_init_a_stamp_has_a_time_and_nothing_is_raised(clean_environment: None) -> None:
    assert lineage.stamp().startswith(";t=")
    lineage.link([lineage.stamp()])


@given(
    st.none() | st.integers(-(2**62), 2**62),
    st.none() | st.integers(-(2**62), 2**62),
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**64 - 1),
)
def test_what_a_stamp_says_is_what_is_read(
    version: int | None, step: int | None, trace_id: int, span_id: int
) -> None:
    context = trace.SpanContext(trace_id, span_id, is_remote=False)
    with trace.use_span(trace.NonRecordingSpan(context)):
        origin = lineage.read(lineage.stamp(policy_version=version, step=step))
    assert origin is not None
    assert (origin.version, origin.step) == (version, step)
    assert origin.span == ((trace_id, span_id, 0) if context.is_valid else None)


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    lineage.link([text])


def pulled(sink: Sink, weights: object, **options: int) -> tuple[Span, Span]:
    """The span in which weights were taken, and that of a sample made with them."""
    with otel_rl.phase("weight_sync"):
        lineage.link_weights(weights, **options)
    with otel_rl.phase("generate"):
        pass
    return span_named(sink, "rl.sync"), span_named(sink, "rl.sample")


def pushed(version: int) -> str:
    with otel_rl.step(version), otel_rl.phase("weight_push"):
        return lineage.stamp(policy_version=version)


def test_a_pull_links_to_the_push_and_a_sample_to_the_pull(started: Sink) -> None:
    pull, sample = pulled(started, pushed(8))
    push = span_named(started, "weight_push")
    assert [link.span_id for link in pull.links] == [push.span_id]
    assert [link.span_id for link in sample.links] == [pull.span_id]
    said = [pairs(span.attributes)["rl.policy.version"] for span in (push, pull, sample)]
    assert said == [8, 8, 8]


def test_weights_without_a_stamp_still_tell_which_pull_a_sample_was_made_with(
    started: Sink,
) -> None:
    pull, sample = pulled(started, {"weights": b""}, policy_version=3)
    assert list(pull.links) == []
    assert [link.span_id for link in sample.links] == [pull.span_id]
    assert pairs(sample.attributes)["rl.policy.version"] == 3


def test_samples_are_of_the_version_that_was_pulled_last(started: Sink) -> None:
    stamp = pushed(8)
    with otel_rl.phase("weight_sync"):
        lineage.link_weights({"otel_rl": stamp})
    origin = lineage.read(lineage.stamp())
    assert origin is not None
    assert origin.version == 8


def test_a_stamp_begins_with_a_traceparent_for_who_knows_only_opentelemetry(started: Sink) -> None:
    with otel_rl.phase("weight_push"):
        stamp = lineage.stamp(policy_version=8)
        here = trace.get_current_span().get_span_context()
    context = propagate.extract({"traceparent": stamp.partition(";")[0]})
    there = trace.get_current_span(context).get_span_context()
    assert (there.trace_id, there.span_id) == (here.trace_id, here.span_id)
