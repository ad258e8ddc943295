"""Whose turn it is among requests of two signals."""

import time
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.signals import Signal
from otel_rl.worker.export.store import Lane, Store
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.otlp.requests import Request

BOUND: Mapping[Signal, int] = {Signal.METRICS: 100, Signal.LOGS: 10, Signal.TRACES: 100}


class Sealed:
    """A transport that leaves bodies as they are."""

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, _body: bytes) -> Reply:
        return Reply(Outcome.ACCEPTED)

    def close(self) -> None:
        return


def lanes(*queued: str) -> Store:
    """Lanes with requests in this order: ``m...`` is one of measurements, all else of events."""
    made = Store(dict.fromkeys(Signal, Sealed()), BOUND)
    for payload in queued:
        signal = Signal.METRICS if payload.startswith("m") else Signal.LOGS
        assert not made.put(Request(payload.encode(), 1, signal))
    return made


def taken(lane: Lane) -> bytes:
    """Take the oldest request."""
    oldest = lane.requests[0]
    assert lane.take(oldest)
    return oldest.body


def drained(made: Store, failing: Signal | None = None) -> list[bytes]:
    """What is sent, in order, while the endpoint of one signal takes nothing."""
    sent = []
    while lane := made.next(lambda lane: lane.signal is not failing):
        sent.append(taken(lane))
    return sent


def test_requests_leave_in_the_order_in_which_they_came() -> None:
    assert drained(lanes("start", "m1", "m2", "end")) == [b"start", b"m1", b"m2", b"end"]


def test_events_do_not_overtake_measurements_that_cannot_be_sent() -> None:
    assert drained(lanes("start", "m1", "end"), failing=Signal.METRICS) == [b"start"]


def test_measurements_overtake_events_that_cannot_be_sent() -> None:
    assert drained(lanes("start", "m1", "end", "m2"), failing=Signal.LOGS) == [b"m1", b"m2"]


def test_measurements_are_tried_before_events_whose_endpoint_failed_last() -> None:
    made = lanes("start", "m1")
    made.events.failures = 1
    assert made.next(lambda _lane: True) is made.measurements


def test_nothing_wakes_for_an_event_that_may_not_be_sent_yet() -> None:
    made = lanes("m1", "end")
    made.measurements.not_before_s = 50.0
    assert made.wake_s() == 50.0


def test_empty_lanes_wake_nobody() -> None:
    assert lanes().wake_s() == float("inf")


def test_a_full_lane_gives_up_its_own_oldest() -> None:
    made = lanes("m1", "12345", "67890")
    assert made.put(Request(b"x", 1, Signal.LOGS)) == 1
    assert drained(made) == [b"m1", b"67890", b"x"]


def test_spans_come_after_both_and_block_neither() -> None:
    made = lanes("start", "m1")
    made.put(Request(b"span", 1, Signal.TRACES))
    made.put(Request(b"m2", 1, Signal.METRICS))
    assert drained(made, failing=Signal.TRACES) == [b"start", b"m1", b"m2"]
    assert drained(made) == [b"span"]


def test_a_request_that_was_dropped_while_it_was_sent_takes_no_other_with_it() -> None:
    made = lanes("12345", "67890")
    sending = made.events.requests[0]
    made.put(Request(b"x", 1, Signal.LOGS))
    assert not made.events.take(sending)
    assert drained(made) == [b"67890", b"x"]


@given(
    st.lists(st.sampled_from([Signal.METRICS, Signal.LOGS]), max_size=30),
    st.lists(st.sampled_from([Signal.METRICS, Signal.LOGS, None]), max_size=60),
)
def test_whatever_fails_when_each_lane_keeps_its_order_and_no_event_overtakes(
    signals: list[Signal], failing: list[Signal | None]
) -> None:
    made = Store(dict.fromkeys(Signal, Sealed()), dict.fromkeys(BOUND, 1 << 20))
    for number, signal in enumerate(signals):
        made.put(Request(bytes((number,)), 1, signal))
    sent: list[int] = []

    def try_one(is_down: Signal | None) -> None:
        lane = made.next(lambda lane: lane.failures == 0 or lane.signal is not is_down)
        if lane is None:
            return
        if lane.signal is is_down:
            lane.failures += 1
        else:
            lane.failures = 0
            sent.append(taken(lane)[0])

    for is_down in failing:
        try_one(is_down)
    while made.next(lambda _lane: True):
        try_one(None)
    assert sorted(sent) == list(range(len(signals)))
    for place, number in enumerate(sent):
        later = sent[place + 1 :]
        if signals[number] is Signal.LOGS:
            assert all(other > number for other in later if signals[other] is Signal.METRICS)
        assert all(other > number for other in later if signals[other] is signals[number])


def test_the_pause_doubles_and_never_is_shorter_than_the_endpoint_asks() -> None:
    lane = Lane(Signal.METRICS, 1)
    for number in range(8):
        began_s = time.monotonic()
        lane.back_off(None)
        assert lane.not_before_s - began_s >= min(0.5 * 2**number, 30.0) / 2
    began_s = time.monotonic()
    lane.back_off(1e6)
    assert lane.not_before_s - began_s >= 1e6
    lane.has_answered()
    assert (lane.failures, lane.not_before_s) == (0, 0.0)


def test_lanes_are_compared_by_identity() -> None:
    assert Lane(Signal.LOGS, 1) != Lane(Signal.LOGS, 1)
