"""From a gauge to an endpoint and back again: what is lost on the way is known in the run."""

from opentelemetry.sdk.resources import Resource

from otel_rl.signals import Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.export.sender import Sender, Source, Store, open_transports
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.settings import read_settings
from tests.support.otlp_sink import OK, Answer, Sink, sums

AWAY: Answer = (503, {"Retry-After": "0"}, b"")


def collect_one(sender: Sender, provider: BufferedMeterProvider) -> None:
    """Let the sender move what was recorded into its queue."""
    while provider.buffer.entries:
        assert not sender.flush(0.01)


def test_what_the_queue_could_not_hold_is_counted_in_the_run_when_contact_returns(
    sink: Sink,
) -> None:
    drops = Drops()
    provider = BufferedMeterProvider(Resource({"service.instance.id": "i"}), Guard(drops))
    sender = Sender(
        Source(provider.collect, lambda: (provider.buffer.abandon(), 0), lambda: False),
        lambda: open_transports([read_settings({}, endpoint=sink.url).metrics]),
        3600.0,
        Guard(drops),
        spans_guard=Guard(Drops()),
        max_stored_bytes=dict.fromkeys(Signal, 30_000),
    )
    sender.start()
    gauge = provider.get_meter("m").create_gauge("loss")
    sink.answer = lambda _number: AWAY
    for step in range(3_000):
        gauge.set(1.0, {"rl.loop.iteration": step})
        if step % 500 == 499:
            collect_one(sender, provider)
    sink.answer = lambda _number: OK
    assert sender.shutdown(30)
    arrived = {m.step for m in sink.measurements("loss")}
    assert 0 < len(arrived) < 3_000
    assert sums(sink.metrics, "otel_rl.worker.measurements.dropped") == {
        ("i", "queue_full"): 3_000 - len(arrived)
    }


def test_ten_minutes_without_an_endpoint_lose_nothing_of_a_thousand_measurements_a_second() -> None:
    provider = BufferedMeterProvider(Resource({"service.instance.id": "i"}), Guard(Drops()))
    gauges = [provider.get_meter("m").create_gauge(f"rl.train.loss.{n}") for n in range(10)]
    for step in range(100):
        for gauge in gauges:
            gauge.set(step / 3, {"rl.loop.iteration": step})
    of_a_second = provider.collect(with_heartbeat=True)
    metrics = read_settings({}).metrics
    assert not metrics.gzip  # else less would be stored
    store = Store(open_transports([metrics]))
    assert sum(store.put(request) for _ in range(600) for request in of_a_second) == 0
    assert store.measurements.waiting() == 600 * 1000
