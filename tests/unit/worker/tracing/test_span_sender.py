"""Spans on their way to an endpoint that is away, refuses them, or is not wanted any more."""

from collections import Counter
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from opentelemetry.sdk.resources import Resource

from otel_rl.worker.drops import DropReason
from otel_rl.worker.settings import read_settings
from otel_rl.worker.tracing.provider import SpanSender, WorkerTracerProvider
from otel_rl.worker.tracing.span_buffer import SpanBuffer
from tests.otlp_sink import OK, Sink, serve

LONG_S = 3600.0
PATIENCE_S = 90.0
AWAY = (503, {"Retry-After": "0"}, b"")


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


class Rig:
    """A tracer, the buffer behind it, and who sends what is in there."""

    def __init__(self, sink: Sink, capacity: int = 100, interval_s: float = LONG_S) -> None:
        self.settings = read_settings({}, endpoint=sink.url).traces
        self.buffer = SpanBuffer(capacity)
        self.sender = SpanSender(self.buffer, self.settings, interval_s)
        provider = WorkerTracerProvider(Resource({"service.name": "r"}), self.buffer)
        self.tracer = provider.get_tracer("t")

    def end(self, *names: object) -> None:
        for name in names:
            self.tracer.start_span(str(name)).end()

    @property
    def lost(self) -> dict[DropReason, int]:
        return dict(self.buffer.guard.drops.counts())


def arrived(sink: Sink) -> Counter[str]:
    return Counter(
        span.name
        for request in sink.traces
        for part in request.resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    )


def test_they_wait_for_an_endpoint_that_is_away_and_arrive_once(sink: Sink) -> None:
    rig = Rig(sink, interval_s=0.01)
    sink.answer = lambda _number: AWAY
    rig.end(*range(50))
    sink.wait(lambda got: got.requests >= 2, PATIENCE_S)
    sink.answer = lambda _number: OK
    rig.end(*range(50, 60))
    assert rig.sender.flush(PATIENCE_S)
    assert arrived(sink) == Counter(map(str, range(60)))
    assert not rig.lost
    rig.sender.close()


def test_a_crowded_buffer_is_emptied_before_the_interval_is_over(sink: Sink) -> None:
    rig = Rig(sink, capacity=8)
    rig.end(1, 2)
    sink.wait(lambda got: arrived(got) == Counter(["1", "2"]), PATIENCE_S)
    rig.sender.close()


def test_what_finds_no_room_is_counted(sink: Sink) -> None:
    is_free = Event()
    rig = Rig(sink, capacity=3)
    sink.answer = lambda _number: OK if is_free.wait(PATIENCE_S) else AWAY
    rig.end("first")
    flushing = Thread(target=rig.sender.flush, args=(PATIENCE_S,))
    flushing.start()
    sink.wait(lambda got: got.requests == 1, PATIENCE_S)
    rig.end(*range(5))
    assert rig.lost == {DropReason.BUFFER_FULL: 2}
    is_free.set()
    flushing.join()
    assert rig.sender.flush(PATIENCE_S)
    assert arrived(sink) == Counter(["first", "0", "1", "2"])
    rig.sender.close()


def test_an_endpoint_without_traces_is_named_once_and_each_loss_counted(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(sink)
    sink.answer = lambda _number: (404, {}, b"")
    for number in range(3):
        rig.end(number)
        assert rig.sender.flush(PATIENCE_S)
    assert rig.lost == {DropReason.REJECTED: 3}
    (said,) = [record.getMessage() for record in caplog.records]
    assert "The endpoint accepts no spans: HTTP 404" in said
    assert "OTEL_TRACES_EXPORTER=none" in said
    rig.sender.close()


def test_the_end_counts_what_was_not_sent_and_is_silent_if_there_is_nothing(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(sink)
    rig.end("sent")
    assert rig.sender.flush(PATIENCE_S)
    rig.sender.close()
    assert not rig.lost
    assert not caplog.records
    again = Rig(sink)
    again.end(1, 2)
    again.sender.close()
    assert again.lost == {DropReason.SHUTDOWN: 2}
    assert "lost are 2 spans" in caplog.text


def test_a_later_sender_takes_over_what_ends_from_then_on(sink: Sink) -> None:
    rig = Rig(sink)
    later = SpanSender(rig.buffer, rig.settings, LONG_S)
    rig.sender.close()
    rig.end("later")
    assert later.flush(PATIENCE_S)
    later.close()
    rig.end("nobody's")
    assert rig.buffer.abandon() == 0
    assert arrived(sink) == Counter(["later"])
    assert rig.lost == {DropReason.NOT_STARTED: 1}
