"""A worker's heartbeat as the bridge takes it: it lives, its clock goes on, and there is no row."""

from time import time_ns

from opentelemetry.sdk.resources import Resource

from otel_rl.bridge.align import Aligner
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.bridge.decode import decode
from otel_rl.bridge.receive.admit import admit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.records import Batch, Decoded, Signal
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.provider import BufferedMeterProvider

S = 1_000_000_000


def worker(index: int) -> BufferedMeterProvider:
    resource = Resource(
        {
            "rl.experiment.name": "e",
            "rl.worker.role": "generator",
            "rl.worker.index": index,
            "service.instance.id": str(index),
            "telemetry.distro.name": "otel_rl",
        }
    )
    return BufferedMeterProvider(resource, Guard(Drops()))


def taken(payload: bytes) -> Decoded:
    (batch,) = admit(Signal.METRICS, payload, ReceiveLimits(), time_ns()).batches
    return decode(Batch(batch.experiment, Signal.METRICS, batch.payload, batch.received_ns))


def test_it_is_taken_says_when_and_has_no_measurement() -> None:
    before_ns = time_ns()
    found = taken(worker(0).heartbeat().payload)
    (export,) = found.exports
    assert found.points == []
    assert before_ns <= export.time_ns <= time_ns()


def test_an_idle_worker_that_beats_holds_up_no_window_of_the_others() -> None:
    busy, idle = worker(0), worker(1)
    depth = busy.get_meter("m").create_gauge("depth")
    aligner = Aligner(AlignSettings(window_s=0.001, allowed_lateness_s=3600))
    depth.set(1.0)
    for request in busy.collect():
        aligner.add(taken(request.payload), received_ns=1 * S)
    while not (rows := aligner.close(2 * S)):
        # Each is later than the one before, as the wall clock is.
        aligner.add(taken(idle.heartbeat().payload), received_ns=2 * S)
        depth.set(1.0)
        for request in busy.collect():
            aligner.add(taken(request.payload), received_ns=2 * S)
    assert rows[0].values["generator/depth"] == 1.0
