"""The sender and its store, against a transport that the test controls."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Event, Semaphore, Timer
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.export import sender
from otel_rl.worker.export.sender import Lane, Sender, Source, Store
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.requests import Request
from tests.support.waiting import wait_until

ACCEPTED = Reply(Outcome.ACCEPTED)
AWAY = Reply(Outcome.RETRY, "HTTP 503")
NOBODY = Reply(Outcome.RETRY, "connection refused", unreachable=True)
LONG_S = 3600.0
PATIENCE_S = 90.0
BUSY_S = 4.0  # of an end of which something takes its whole share: longer than a machine pauses


class Endpoint:
    """A transport whose answers the test gives; records what it was sent."""

    def __init__(self) -> None:
        self.answer: Callable[[bytes], Reply] = lambda _body: ACCEPTED
        self.accepted: list[bytes] = []
        self.attempts = Semaphore(0)
        self.suppressed: object = None
        self.closed = Event()

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, body: bytes) -> Reply:
        self.suppressed = context.get_value("suppress_instrumentation")
        reply = self.answer(body)
        if reply.outcome is Outcome.ACCEPTED:
            self.accepted.append(body)
        self.attempts.release()
        return reply

    def close(self) -> None:
        self.closed.set()


class Rig:
    """A sender with everything around it in the hands of the test."""

    def __init__(
        self,
        interval_s: float = LONG_S,
        max_stored_bytes: int = 1 << 20,
        heartbeat: Callable[[], Request | None] = lambda: None,
    ) -> None:
        self.endpoint = Endpoint()
        self.recorded: deque[Request] = deque()
        self.drops = Drops()
        self.span_drops = Drops()
        self.goodbye: Request | None = None
        self.unready_since_ns: int | None = None
        self.collections = 0
        self.is_crowded = Event()
        self.sender = Sender(
            Source(
                self._collect,
                self._abandon,
                self.is_crowded.is_set,
                heartbeat=heartbeat,
                unready_since_ns=lambda: self.unready_since_ns,
                last=lambda: self.goodbye,
            ),
            lambda: dict.fromkeys(Signal, self.endpoint),
            interval_s,
            Guard(self.drops),
            spans_guard=Guard(self.span_drops),
            max_stored_bytes=dict.fromkeys(Signal, max_stored_bytes),
        )
        self.sender.start()

    def record(self, payload: bytes, measurements: int = 1) -> None:
        self.recorded.append(Request(payload, measurements))

    def _abandon(self) -> tuple[int, int]:
        return sum(request.measurements for request in self._collect()), 0

    def _collect(self) -> list[Request]:
        self.is_crowded.clear()
        self.collections += 1
        return [self.recorded.popleft() for _ in range(len(self.recorded))]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.sender.shutdown(0.1)


def test_flush_returns_when_the_endpoint_has_everything(rig: Rig) -> None:
    rig.record(b"a")
    rig.record(b"b")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a", b"b"]


def test_a_thread_that_begins_after_its_end_takes_nothing_of_what_follows() -> None:
    asked: list[str] = []

    def first() -> list[Request]:
        asked.append("for the first requests")
        return []

    source = Source(list, lambda: (0, 0), lambda: False, first=first)
    endpoint, guard = Endpoint(), Guard(Drops())
    late = Sender(source, lambda: dict.fromkeys(Signal, endpoint), LONG_S, guard, spans_guard=guard)
    late.shutdown(0.0)
    late.start()
    assert endpoint.closed.wait(PATIENCE_S)
    assert asked == []


def test_an_interval_exports_without_being_asked() -> None:
    rig = Rig(interval_s=0.01)
    rig.record(b"a")
    assert rig.endpoint.attempts.acquire(timeout=PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]
    rig.sender.shutdown(PATIENCE_S)


def test_a_crowded_buffer_is_emptied_before_the_interval_is_over(rig: Rig) -> None:
    rig.record(b"a")
    rig.is_crowded.set()
    assert rig.endpoint.attempts.acquire(timeout=PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]


def test_what_the_endpoint_cannot_take_now_is_sent_again_in_order(rig: Rig) -> None:
    failures = iter([AWAY, AWAY])
    rig.endpoint.answer = lambda _body: next(failures, ACCEPTED)
    rig.record(b"a")
    rig.record(b"b")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a", b"b"]
    assert rig.drops.counts() == {}


def test_flush_gives_up_at_its_timeout_and_loses_nothing(rig: Rig) -> None:
    rig.endpoint.answer = lambda _body: AWAY
    rig.record(b"a")
    assert not rig.sender.flush(0.05)
    rig.endpoint.answer = lambda _body: ACCEPTED
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]


def test_flush_does_not_wait_for_an_endpoint_that_hangs(rig: Rig) -> None:
    released = Event()

    def hang(_body: bytes) -> Reply:
        released.wait(PATIENCE_S)
        return ACCEPTED

    rig.endpoint.answer = hang
    rig.record(b"a")
    assert not rig.sender.flush(0.05)
    released.set()


def test_a_refused_request_is_counted_and_the_next_one_is_sent(rig: Rig) -> None:
    rig.endpoint.answer = lambda body: Reply(Outcome.REFUSED, "no") if body == b"a" else ACCEPTED
    rig.record(b"a", measurements=5)
    rig.record(b"b")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"b"]
    assert rig.drops.counts() == {DropReason.REJECTED: 5}


def test_a_refused_event_costs_no_measurement_and_is_told_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.endpoint.answer = lambda body: Reply(Outcome.REFUSED, "no") if body == b"e" else ACCEPTED
    for _ in range(2):
        rig.recorded.append(Request(b"e", 1, Signal.LOGS))
    rig.record(b"a")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]
    assert rig.drops.counts() == {DropReason.REJECTED: 2}
    assert caplog.text.count("accepts no log events: no") == 1


def test_an_idle_worker_beats_and_no_heartbeat_is_ever_repeated() -> None:
    beats = iter([Request(b"beat", 0)])
    is_wanted = Event()
    quick = Rig(
        interval_s=0.01,
        heartbeat=lambda: next(beats, None) if is_wanted.is_set() else None,
    )
    quick.endpoint.answer = lambda _body: AWAY
    is_wanted.set()
    assert quick.endpoint.attempts.acquire(timeout=PATIENCE_S)
    quick.endpoint.answer = lambda _body: ACCEPTED
    quick.record(b"a")
    assert quick.sender.flush(PATIENCE_S)
    assert quick.endpoint.accepted == [b"a"]
    quick.sender.shutdown(PATIENCE_S)


def test_points_that_a_partial_success_rejects_are_counted(rig: Rig) -> None:
    rig.endpoint.answer = lambda _body: Reply(Outcome.ACCEPTED, "no experiment", rejected=3)
    rig.record(b"a", measurements=10)
    assert rig.sender.flush(PATIENCE_S)
    assert rig.drops.counts() == {DropReason.REJECTED: 3}


def test_the_store_is_bounded_and_drops_the_oldest() -> None:
    rig = Rig(max_stored_bytes=10)
    rig.endpoint.answer = lambda _body: AWAY
    for n in range(5):
        rig.record(b"%04d" % n, measurements=2)
    rig.sender.flush(0.05)
    rig.endpoint.answer = lambda _body: ACCEPTED
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"0003", b"0004"]
    assert rig.drops.counts() == {DropReason.QUEUE_FULL: 6}
    rig.sender.shutdown(PATIENCE_S)


def test_shutdown_delivers_the_rest_and_ends_the_thread(rig: Rig) -> None:
    rig.record(b"a")
    assert rig.sender.shutdown(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]
    assert rig.endpoint.closed.is_set()
    assert not rig.sender.flush(PATIENCE_S)
    assert rig.sender.shutdown(PATIENCE_S)


def test_spans_that_cannot_be_delivered_leave_time_for_the_goodbye(rig: Rig) -> None:
    rig.endpoint.answer = lambda body: AWAY if body == b"span" else ACCEPTED
    rig.recorded.append(Request(b"span", 3, Signal.TRACES))
    rig.record(b"a")
    rig.goodbye = Request(b"goodbye", 0)
    assert rig.sender.shutdown(BUSY_S)
    assert rig.endpoint.accepted == [b"a", b"goodbye"]
    assert rig.drops.counts() == {}
    assert rig.span_drops.counts() == {DropReason.SHUTDOWN: 3}


def test_an_endpoint_for_spans_that_hangs_costs_neither_a_flush_nor_the_goodbye(rig: Rig) -> None:
    released = Event()

    def hang_for_spans(body: bytes) -> Reply:
        if body == b"span":
            released.wait(PATIENCE_S)
        return ACCEPTED

    rig.endpoint.answer = hang_for_spans
    rig.sender._source = replace(rig.sender._source, spans_go_elsewhere=True)
    rig.goodbye = Request(b"goodbye", 0)
    rig.record(b"a")
    rig.recorded.append(Request(b"span", 1, Signal.TRACES))
    assert rig.sender.flush(BUSY_S)
    released.set()
    wait_until(lambda: b"span" in rig.endpoint.accepted, timeout_s=PATIENCE_S)
    released.clear()
    rig.recorded.append(Request(b"span", 3, Signal.TRACES))
    assert rig.sender.shutdown(BUSY_S)
    assert rig.endpoint.accepted == [b"a", b"span", b"goodbye"]
    assert rig.span_drops.counts() == {DropReason.SHUTDOWN: 3}
    released.set()


def test_a_device_that_hangs_leaves_time_for_the_spans(rig: Rig) -> None:
    rig.unready_since_ns = 1
    rig.recorded.append(Request(b"span", 1, Signal.TRACES))
    assert not rig.sender.shutdown(BUSY_S)
    assert rig.endpoint.accepted == [b"span"]


def test_who_waits_for_a_device_does_not_keep_the_processor_busy(rig: Rig) -> None:
    rig.unready_since_ns = 1
    assert not rig.sender.flush(0.5)
    assert rig.collections <= 100


def test_what_shutdown_could_not_deliver_is_counted(rig: Rig) -> None:
    rig.endpoint.answer = lambda _body: AWAY
    rig.record(b"a", measurements=4)
    assert not rig.sender.shutdown(0.3)
    assert rig.drops.counts() == {DropReason.SHUTDOWN: 4}


def test_our_own_requests_are_hidden_from_instrumentation(rig: Rig) -> None:
    rig.record(b"a")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.suppressed is True


def test_a_defect_in_collecting_does_not_end_the_thread(rig: Rig) -> None:
    rig.recorded = deque([None])  # type: ignore[list-item]  # a defect
    rig.sender.flush(PATIENCE_S)
    rig.recorded.clear()
    rig.record(b"a")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]


def test_where_nobody_has_ever_listened_shutdown_gives_up_sooner(rig: Rig) -> None:
    rig.endpoint.answer = lambda _body: NOBODY
    rig.record(b"a", measurements=4)
    assert not rig.sender.shutdown(LONG_S, unreached_s=0.05)
    assert rig.drops.counts() == {DropReason.SHUTDOWN: 4}


def test_an_endpoint_that_was_there_once_gets_its_full_time(rig: Rig) -> None:
    rig.record(b"a")
    assert rig.sender.flush(PATIENCE_S)
    failures = iter([NOBODY] * 3)
    rig.endpoint.answer = lambda _body: next(failures, ACCEPTED)
    rig.record(b"b")
    assert rig.sender.shutdown(PATIENCE_S, unreached_s=0)
    assert rig.endpoint.accepted == [b"a", b"b"]


def test_an_endpoint_that_has_the_first_request_and_has_yet_to_answer_gets_its_full_time(
    rig: Rig,
) -> None:
    is_ending = Event()
    rig.endpoint.answer = lambda _body: ACCEPTED if is_ending.wait(PATIENCE_S) else AWAY
    rig.record(b"a")
    rig.is_crowded.set()
    Timer(0.3, is_ending.set).start()
    assert rig.sender.shutdown(PATIENCE_S, unreached_s=0)


def test_an_endpoint_that_answers_slowly_gets_time_for_each_of_its_answers(rig: Rig) -> None:
    late = Event()

    def answer_late(_body: bytes) -> Reply:
        late.wait(1.5)
        return ACCEPTED

    rig.endpoint.answer = answer_late
    for payload in (b"a", b"b", b"c"):
        rig.record(payload)
    assert rig.sender.shutdown(PATIENCE_S, silent_s=4.0)
    assert rig.endpoint.accepted == [b"a", b"b", b"c"]


def test_an_endpoint_that_has_fallen_silent_is_given_up_before_its_whole_time(rig: Rig) -> None:
    released = Event()
    rig.record(b"a")
    assert rig.sender.flush(PATIENCE_S)
    rig.endpoint.answer = lambda _body: ACCEPTED if released.wait(PATIENCE_S) else AWAY
    rig.record(b"b", measurements=4)
    assert not rig.sender.shutdown(LONG_S, silent_s=0.2)
    released.set()
    assert rig.drops.counts() == {DropReason.SHUTDOWN: 4}


def test_an_answer_after_shutdown_gave_up_does_not_bring_the_sender_back(rig: Rig) -> None:
    released = Event()
    rig.endpoint.answer = lambda _body: ACCEPTED if released.wait(PATIENCE_S) else AWAY
    rig.goodbye = Request(b"goodbye", 0, Signal.LOGS)
    rig.record(b"a")
    assert not rig.sender.shutdown(LONG_S, silent_s=0.2)
    rig.record(b"of the next session")
    released.set()
    assert rig.endpoint.closed.wait(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]
    assert [request.payload for request in rig.recorded] == [b"of the next session"]


def test_a_collection_that_begins_after_shutdown_gave_up_takes_nothing(rig: Rig) -> None:
    assert rig.sender.shutdown(PATIENCE_S)
    rig.record(b"of the next session")
    rig.sender._collect()
    assert [request.payload for request in rig.recorded] == [b"of the next session"]


@pytest.mark.parametrize(
    ("patience_s", "lost"), [(PATIENCE_S, {DropReason.SHUTDOWN: 4}), (0.01, {})]
)
def test_what_is_just_being_collected_is_counted_or_said_to_be_uncounted(
    rig: Rig,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float,
    lost: dict[DropReason, int],
) -> None:
    monkeypatch.setattr(sender, "_COLLECTION_S", patience_s)
    rig.endpoint.answer = lambda _body: NOBODY
    rig.record(b"a", measurements=4)
    collecting, packed = Event(), Event()
    collect = rig.sender._source.collect

    def collect_slowly() -> list[Request]:
        taken = collect()
        collecting.set()
        assert packed.wait(PATIENCE_S)
        return taken

    rig.sender._source = replace(rig.sender._source, collect=collect_slowly)
    rig.is_crowded.set()
    assert collecting.wait(PATIENCE_S)
    packing = Timer(0.5, packed.set)
    if lost:
        packing.start()
    assert not rig.sender.shutdown(0.01)
    packed.set()
    packing.cancel()
    assert rig.drops.counts() == lost
    assert ("lost are at least 0 measurements" in caplog.text) == (not lost)


def test_what_could_not_even_be_collected_is_counted(rig: Rig) -> None:
    released = Event()

    def hang(_body: bytes) -> Reply:
        released.wait(PATIENCE_S)
        return ACCEPTED

    rig.endpoint.answer = hang
    rig.record(b"a", measurements=4)
    rig.sender.flush(0.05)
    rig.record(b"b", measurements=3)
    assert not rig.sender.shutdown(0.05)
    assert rig.drops.counts() == {DropReason.SHUTDOWN: 7}
    released.set()


def test_a_loss_at_the_very_end_is_still_reported(rig: Rig) -> None:
    def refuse(body: bytes) -> Reply:
        rig.record(b"the count")
        rig.endpoint.answer = lambda _body: ACCEPTED
        return Reply(Outcome.REFUSED, "no")

    rig.endpoint.answer = refuse
    rig.record(b"a")
    assert rig.sender.shutdown(PATIENCE_S)
    assert rig.endpoint.accepted == [b"the count"]


def test_a_transport_that_fails_for_once_loses_nothing(rig: Rig) -> None:
    failures = iter([RuntimeError("defect")])

    def fail(_body: bytes) -> Reply:
        for failure in failures:
            raise failure
        return ACCEPTED

    rig.endpoint.answer = fail
    rig.record(b"a")
    assert rig.sender.flush(PATIENCE_S)
    assert rig.endpoint.accepted == [b"a"]
    assert rig.drops.counts() == {}


def test_a_transport_that_always_fails_does_not_spin() -> None:
    rig = Rig(interval_s=0.01)
    attempts = []

    def fail(body: bytes) -> Reply:
        attempts.append(body)
        raise RuntimeError("defect")

    rig.endpoint.answer = fail
    begun_s = monotonic()
    rig.record(b"a")
    assert not rig.sender.flush(0.6)
    # A flush tries four times a second, and the sender by itself twice before it.
    assert len(attempts) <= 2 + (monotonic() - begun_s) / 0.25
    rig.sender.shutdown(0.0)


def test_a_collection_that_fails_is_no_successful_flush(rig: Rig) -> None:
    rig.recorded = deque([None])  # type: ignore[list-item]  # a defect
    assert not rig.sender.flush(PATIENCE_S)


BOUND: Mapping[Signal, int] = {Signal.METRICS: 100, Signal.LOGS: 10, Signal.TRACES: 100}


def lanes(*queued: str) -> Store:
    """Lanes with requests in this order: ``m...`` is one of measurements, all else of events."""
    made = Store(dict.fromkeys(Signal, Endpoint()), BOUND)
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
    made = Store(dict.fromkeys(Signal, Endpoint()), dict.fromkeys(BOUND, 1 << 20))
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
        began_s = monotonic()
        lane.back_off(None)
        assert lane.not_before_s - began_s >= min(0.5 * 2**number, 30.0) / 2
    began_s = monotonic()
    lane.back_off(1e6)
    assert lane.not_before_s - began_s >= 1e6
    lane.has_answered()
    assert (lane.failures, lane.not_before_s) == (0, 0.0)


def test_lanes_are_compared_by_identity() -> None:
    assert Lane(Signal.LOGS, 1) != Lane(Signal.LOGS, 1)
