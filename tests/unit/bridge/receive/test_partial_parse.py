"""A part of a request that cannot be read takes nothing else with it."""

import time
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.signal_specs import SIGNALS, ExportRequest
from otel_rl.bridge.receive.validate import Admission, Validated, validate
from otel_rl.bridge.receive.wire import fields
from otel_rl.errors import MalformedRequest
from otel_rl.records import ExperimentKey, Signal
from tests.support.otlp_requests import (
    Attributes,
    delimited,
    event,
    gauge,
    key_values,
    logs_request,
    metrics_request,
    point,
    trace_request,
)

LIMITS = ReceiveLimits()

Damage = Callable[[Signal, str], bytes]
"""Makes three items of an experiment that cannot be read."""


def request_of(signal: Signal, experiment: str, mark: str = "") -> bytes:
    """Three items of an experiment, with an attribute in which something can be damaged."""
    resource: Attributes = {"rl.experiment.name": experiment, "mark": mark}
    requests: Mapping[Signal, ExportRequest] = {
        Signal.METRICS: metrics_request(gauge(point(), point()), gauge(), resource=resource),
        Signal.TRACES: trace_request(3, resource=resource),
        Signal.LOGS: logs_request(event(), event(), event(), resource=resource),
    }
    return requests[signal].SerializeToString()


def not_utf8(signal: Signal, experiment: str) -> bytes:
    return request_of(signal, experiment, "MARK").replace(b"MARK", b"\xff\xfe\xfd\xfc")


def damaged(signal: Signal, experiment: str) -> bytes:
    """A length within it is wrong, and the part is as long as it says."""
    sound = request_of(signal, experiment, "MARK")
    return sound.replace(b"\x0a\x04MARK", b"\x0a\x74MARK")


def too_deep(signal: Signal, experiment: str) -> bytes:
    """With a value of arrays within arrays, deeper than protobuf reads."""
    value = b""
    for _ in range(120):
        value = delimited(0x2A, delimited(0x0A, value))
    attribute = delimited(0x0A, delimited(0x0A, b"deep") + delimited(0x12, value))
    # A second resource is merged with the first.
    return delimited(0x0A, content(request_of(signal, experiment)) + delimited(0x0A, attribute))


def content(request: bytes) -> bytes:
    """What a request has of its one resource."""
    ((_, _, start, end),) = fields(request)
    return request[start:end]


def admitted_of(signal: Signal, *parts: bytes, admission: Admission | None = None) -> Validated:
    return validate(signal, b"".join(parts), LIMITS, time.time_ns(), admission)


DAMAGES = [not_utf8, damaged, too_deep]
every_signal = pytest.mark.parametrize("signal", Signal)
every_damage = pytest.mark.parametrize("damage", DAMAGES)


@every_signal
@every_damage
def test_what_can_be_read_is_taken_and_what_cannot_is_counted_and_named(
    signal: Signal, damage: Damage
) -> None:
    good = {name: request_of(signal, name) for name in ("a", "b")}
    admitted = admitted_of(signal, good["a"], damage(signal, "broken"), good["b"])
    stored = {batch.experiment.experiment: batch.payload for batch in admitted.batches}
    assert stored == good
    assert (admitted.accepted, admitted.refused) == (6, {Refusal.MALFORMED: 3})
    assert f"{SIGNALS[signal].items.capitalize()} refused: 3 (malformed)" in admitted.message
    assert "no UTF-8" in admitted.message


@every_signal
@every_damage
def test_a_request_of_which_nothing_can_be_read_is_malformed(
    signal: Signal, damage: Damage
) -> None:
    with pytest.raises(MalformedRequest, match="not a protobuf Export"):
        admitted_of(signal, damage(signal, "a"), damage(signal, "b"))


@every_signal
def test_a_request_that_is_cut_off_is_never_taken_in_part(signal: Signal) -> None:
    sound, cut = request_of(signal, "a"), request_of(signal, "b")
    for end in range(1, len(cut)):
        with pytest.raises(MalformedRequest):
            admitted_of(signal, sound, cut[:end])


def test_an_exemplar_that_cannot_be_read_costs_its_resource_only() -> None:
    broken = metrics_request()
    exemplar = broken.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].exemplars
    exemplar.add(as_double=1.0, time_unix_nano=time.time_ns()).filtered_attributes.extend(
        key_values({"MARK": 1})
    )
    payload = broken.SerializeToString().replace(b"MARK", b"\xff\xff\xff\xff")
    admitted = admitted_of(Signal.METRICS, request_of(Signal.METRICS, "a"), payload)
    assert (admitted.accepted, admitted.refused) == (3, {Refusal.MALFORMED: 1})


def test_the_experiment_is_named_and_counted_if_it_can_be_read() -> None:
    broken = metrics_request(gauge(name="MARK")).SerializeToString()
    payload = broken.replace(b"MARK", b"\xff\xff\xff\xff")
    admitted = admitted_of(Signal.METRICS, request_of(Signal.METRICS, "a"), payload)
    assert "What experiment 'x/default' sends cannot be read" in admitted.message
    assert admitted.refused_of_runs == {(ExperimentKey("x"), Refusal.MALFORMED): 1}


def test_nothing_is_counted_for_an_experiment_that_the_sender_may_not_write() -> None:
    def only_a(key: ExperimentKey, _team: str) -> tuple[Refusal, str] | None:
        return None if key.experiment == "a" else (Refusal.NOT_ALLOWED, "not yours")

    broken = metrics_request(gauge(name="MARK")).SerializeToString()
    payload = broken.replace(b"MARK", b"\xff\xff\xff\xff")
    good = request_of(Signal.METRICS, "a")
    admitted = admitted_of(Signal.METRICS, good, payload, admission=only_a)
    assert admitted.refused_of_runs == {(None, Refusal.MALFORMED): 1}


def test_what_is_refused_for_other_reasons_is_counted_beside_it() -> None:
    late = metrics_request(gauge(point(time_ns=5)), resource={"rl.experiment.name": "a"})
    admitted = admitted_of(
        Signal.METRICS,
        late.SerializeToString(),
        not_utf8(Signal.METRICS, "b"),
        request_of(Signal.METRICS, "a"),
    )
    assert admitted.refused == {Refusal.MALFORMED: 3, Refusal.TIME_OUT_OF_RANGE: 1}


def test_log_records_that_cannot_be_events_are_left_out_without_a_word() -> None:
    latin1 = logs_request(event("nginx", {"path": "MARK"}), resource={"service.name": "nginx"})
    payload = latin1.SerializeToString().replace(b"MARK", b"\xe9\xe8\xe0\xf9")
    for good, accepted in ((request_of(Signal.LOGS, "a"), 3), (b"", 0)):
        admitted = admitted_of(Signal.LOGS, good, payload)
        assert (admitted.accepted, admitted.ignored, admitted.message) == (accepted, 1, "")


@settings(deadline=None)
@given(
    signal=st.sampled_from(Signal),
    parts=st.lists(st.sampled_from([None, *DAMAGES]), max_size=5),
)
def test_every_item_is_taken_or_counted_as_refused(
    signal: Signal, parts: list[Damage | None]
) -> None:
    made = [(damage or request_of)(signal, f"e{n}") for n, damage in enumerate(parts)]
    if parts and None not in parts:
        with pytest.raises(MalformedRequest):
            admitted_of(signal, *made)
        return
    admitted = admitted_of(signal, *made)
    assert admitted.accepted == 3 * parts.count(None)
    assert admitted.accepted + sum(admitted.refused.values()) == 3 * len(parts)
    assert len(admitted.batches) == parts.count(None)
