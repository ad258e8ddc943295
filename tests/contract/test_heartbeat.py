"""A worker's heartbeat as the bridge takes it: that it lives, and how far it has come."""

from collections.abc import Iterable
from time import time_ns

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.resources import Resource

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, Decoded, Signal
from tests.support.doors import Program, decode

S = 1_000_000_000

WINDOW_S = 0.001


def worker(index: int) -> Program:
    resource = Resource(
        {
            "rl.experiment.name": "e",
            "rl.worker.role": "generator",
            "rl.worker.index": index,
            "service.instance.id": str(index),
            "telemetry.distro.name": "otel_rl",
        }
    )
    return Program(resource)


def aligner() -> Run:
    return Run(AlignSettings(window_s=WINDOW_S, wait_s=3600))


def taken(payload: bytes) -> Decoded:
    (batch,) = validate(Signal.METRICS, payload, ReceiveLimits(), time_ns()).batches
    return decode(Batch(batch.experiment, Signal.METRICS, batch.payload, batch.received_ns))


def export(of: Program, to: Run) -> None:
    """As a session does it after each interval."""
    for request in of.export(with_heartbeat=True) or [of.heartbeat()]:
        to.add(taken(request.payload), received_ns=1 * S)


def wait_for_the_next_window() -> None:
    window_ns = int(WINDOW_S * S)
    end_ns = (time_ns() // window_ns + 1) * window_ns
    while time_ns() <= end_ns:
        pass


def test_it_is_taken_says_when_and_has_no_measurement() -> None:
    before_ns = time_ns()
    one = worker(0)
    one.export()
    found = taken(one.heartbeat().payload)
    (export,) = found.exports
    assert found.points == []
    assert before_ns <= export.time_ns <= time_ns()


def test_an_idle_worker_that_beats_holds_up_no_window_of_the_others() -> None:
    busy, idle, run = worker(0), worker(1), aligner()
    depth = busy.get_meter("m").create_gauge("depth")
    depth.set(1.0)
    export(busy, run)
    export(idle, run)
    while not (rows := run.close(2 * S)):
        wait_for_the_next_window()
        export(busy, run)
        export(idle, run)
    assert rows[0].values["generator/depth"] == 1.0


def test_what_is_recorded_while_a_worker_collects_is_not_late() -> None:
    one, run = worker(0), aligner()
    meter = one.get_meter("m")
    depth = meter.create_gauge("depth")

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        depth.set(1.0)  # as a training thread does, which does not wait for the exporter
        wait_for_the_next_window()
        return [Observation(1.0)]

    meter.create_observable_gauge("observed", [observe])
    for _ in range(3):
        export(one, run)
        run.close(2 * S)
    assert (run.sample_counts.taken, run.sample_counts.late) == (5, 0)
