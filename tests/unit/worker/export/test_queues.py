"""Whose turn it is among requests of two signals."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.signals import Signal
from otel_rl.worker.export.queues import SendQueue, SendQueues
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.otlp.request_packer import Request

BOUND: Mapping[Signal, int] = {Signal.METRICS: 100, Signal.LOGS: 10}


class Sealed:
    """A transport that leaves bodies as they are."""

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, _body: bytes) -> Reply:
        return Reply(Outcome.ACCEPTED)

    def close(self) -> None:
        return


def lanes(*queued: str) -> SendQueues:
    """Lanes with requests in this order: ``m...`` is one of measurements, all else of events."""
    made = SendQueues(lambda _signal, _beside: Sealed(), BOUND)
    for payload in queued:
        signal = Signal.METRICS if payload.startswith("m") else Signal.LOGS
        assert not made.put(Request(payload.encode(), 1, signal))
    return made


def drained(made: SendQueues, failing: Signal | None = None) -> list[bytes]:
    """What is sent, in order, while the endpoint of one signal takes nothing."""
    sent = []
    while lane := made.next(lambda lane: lane.signal is not failing):
        sent.append(lane.take_oldest().body)
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
    assert made.next(lambda _lane: True) is made.main


def test_nothing_wakes_for_an_event_that_may_not_be_sent_yet() -> None:
    made = lanes("m1", "end")
    made.main.not_before_s = 50.0
    assert made.wake_s() == 50.0


def test_empty_lanes_wake_nobody() -> None:
    assert lanes().wake_s() == float("inf")


def test_a_full_lane_gives_up_its_own_oldest() -> None:
    made = lanes("m1", "12345", "67890")
    dropped = made.put(Request(b"x", 1, Signal.LOGS))
    assert [item.body for item in dropped] == [b"12345"]
    assert drained(made) == [b"m1", b"67890", b"x"]


def test_a_transport_is_opened_beside_the_other() -> None:
    opened: list[tuple[Signal, object]] = []

    def open_transport(signal: Signal, beside: object) -> Sealed:
        opened.append((signal, beside))
        return Sealed()

    made = SendQueues(open_transport, BOUND)
    made.put(Request(b"a", 1, Signal.LOGS))
    made.put(Request(b"b", 1, Signal.METRICS))
    assert opened == [(Signal.LOGS, None), (Signal.METRICS, made.events.transport)]


@given(
    st.lists(st.sampled_from([Signal.METRICS, Signal.LOGS]), max_size=30),
    st.lists(st.sampled_from([Signal.METRICS, Signal.LOGS, None]), max_size=60),
)
def test_whatever_fails_when_each_lane_keeps_its_order_and_no_event_overtakes(
    signals: list[Signal], failing: list[Signal | None]
) -> None:
    made = SendQueues(lambda _signal, _beside: Sealed(), dict.fromkeys(BOUND, 1 << 20))
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
            sent.append(lane.take_oldest().body[0])

    for is_down in failing:
        try_one(is_down)
    while made:
        try_one(None)
    assert sorted(sent) == list(range(len(signals)))
    for place, number in enumerate(sent):
        later = sent[place + 1 :]
        if signals[number] is Signal.LOGS:
            assert all(other > number for other in later if signals[other] is Signal.METRICS)
        assert all(other > number for other in later if signals[other] is signals[number])


def test_lanes_are_compared_by_identity() -> None:
    assert SendQueue(Signal.LOGS, 1) != SendQueue(Signal.LOGS, 1)
