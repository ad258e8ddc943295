"""An endpoint that is away, silent or broken costs a training loop nothing that it can feel.

Each manner is that of a real endpoint in trouble. The loop runs to its end during the trouble; when
it is over, everything arrives, except what the endpoint itself has refused for good: that is
counted, and the count arrives.
"""

import socket
from collections import Counter

import pytest

from tests.process.unruly import HEARTBEAT, OWN_CLOCK, Endpoint, Manner, Request, unruly, worker
from tests.support.otlp_sink import Sink, measurements, serve, sums
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

DROPPED = "otel_rl.worker.measurements.dropped"

LOOP = """
import sys
import otel_rl
otel_rl.init(experiment="e", role="r", export_interval_s=0.02)
for step in range(5_000):
    otel_rl.log({"loss": 1.0}, step=step)
print("trained", flush=True)
sys.stdin.readline()
otel_rl.log({"loss": 1.0}, step=5_000)
print("delivered" if otel_rl.finish(timeout_s=60) else "gave up", flush=True)
"""
STEPS = range(5_001)

SHUTDOWN = f"""{OWN_CLOCK}
import otel_rl
otel_rl.init(experiment="e", role="r", export_interval_s=0.02)
for step in range(20_000):
    otel_rl.log({{"loss": 1.0}}, step=step)
print("trained", flush=True)
begun_s = own_clock_s()
assert not otel_rl.finish(timeout_s=2)
print("took", own_clock_s() - begun_s, flush=True)
"""


def black_hole(endpoint: Endpoint, request: Request) -> None:
    """Takes the request and never answers."""
    endpoint.healed.wait()
    request.cut()


def slow(endpoint: Endpoint, request: Request) -> None:
    """Answers in the end."""
    endpoint.healed.wait()
    endpoint.deliver(request)


def status(code: int, content_type: str = "application/x-protobuf") -> Manner:
    return lambda _endpoint, request: request.respond(code, {"Content-Type": content_type}, b"")


def garbage(_endpoint: Endpoint, request: Request) -> None:
    """Speaks another protocol."""
    request.connection.sendall(b"\x15\x03\x01\x00\x02\x02\x46")
    request.hang_up()


def cut_before(_endpoint: Endpoint, request: Request) -> None:
    """The connection ends before the request has got anywhere."""
    request.cut()


def cut_after(endpoint: Endpoint, request: Request) -> None:
    """The request is taken, but its answer is lost."""
    endpoint.accept(request)
    request.cut()


def cut_within(endpoint: Endpoint, request: Request) -> None:
    """The request is taken, and its answer breaks off."""
    endpoint.accept(request)
    request.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    request.hang_up()


def refuse(endpoint: Endpoint, request: Request) -> None:
    """Lets nobody in any more."""
    endpoint.refuse()
    request.cut()


def but_heartbeats(manner: Manner) -> Manner:
    """``manner`` for all but heartbeats: what becomes of them is counted nowhere."""

    def answer(endpoint: Endpoint, request: Request) -> None:
        (Endpoint.deliver if request.is_heartbeat else manner)(endpoint, request)

    return answer


PASSING = {
    "refuse": refuse,
    "black hole": black_hole,
    "slow": slow,
    "429": status(429),
    "503": status(503),
    "a proxy's page": status(200, "text/html; charset=utf-8"),
    "garbage": garbage,
    "cut before": cut_before,
    "cut after": cut_after,
    "cut within": cut_within,
}


def without_repeats(sink: Sink) -> list[int | None]:
    """The steps of all measurements, of equal requests only one."""
    return [
        m.step
        for m in measurements(list({m.SerializeToString(): m for m in sink.metrics}.values()))
    ]


@pytest.mark.parametrize("manner", slow_after(2, PASSING.values()), ids=PASSING)
def test_after_the_trouble_everything_arrives_once(manner: Manner) -> None:
    with (
        unruly(but_heartbeats(manner)) as endpoint,
        worker(endpoint.url, LOOP, OTEL_EXPORTER_OTLP_TIMEOUT="2") as training,
    ):
        endpoint.wait_for_attempts(1)
        training.wait_for("trained")
        endpoint.heal()
        training.go_on()
        training.wait_for("delivered")
        assert training.end() == 0
        assert sorted(s for s in without_repeats(endpoint.sink) if s is not None) == list(STEPS)
        assert sums(endpoint.sink.metrics, DROPPED) == {}


@pytest.mark.parametrize("code", slow_after(1, [400, 401, 404, 413, 500]))
def test_what_is_refused_for_good_is_counted_and_the_count_arrives(code: int) -> None:
    refuse_all = but_heartbeats(status(code))
    with unruly(refuse_all) as endpoint, worker(endpoint.url, LOOP) as training:
        endpoint.wait_for_attempts(1)
        training.wait_for("trained")
        endpoint.heal()
        training.go_on()
        training.wait_for("delivered")
        assert training.end() == 0
        arrived = [m.step for m in endpoint.sink.measurements("loss")]
        ((_, reason),) = sums(endpoint.sink.metrics, DROPPED)
        (dropped,) = sums(endpoint.sink.metrics, DROPPED).values()
        assert reason == "rejected"
        assert dropped > 0
        assert arrived == list(STEPS[int(dropped) :])
        assert f"HTTP {code}" in training.output


def test_a_worker_without_a_valid_token_is_told_the_loss_and_the_remedy() -> None:
    refuse = status(401)
    with (
        unruly(refuse, manner_of_events=refuse) as endpoint,
        worker(endpoint.url, LOOP) as training,
    ):
        training.wait_for("trained")
        training.go_on()
        training.wait_for("delivered")
        assert training.end() == 0
    said = [line for line in training.output.splitlines() if "endpoint" in line.lower()]
    assert said
    for line in said:
        assert "HTTP 401" in line
        assert "is dropped" in line
        assert "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20TOKEN" in line


def test_a_refusal_at_the_very_end_is_reported_too() -> None:
    def refuse_once(endpoint: Endpoint, request: Request) -> None:
        endpoint.heal()
        request.respond(400, {}, b"")

    program = LOOP.replace("0.02", "600")  # one export, however busy the machine is
    manner = but_heartbeats(refuse_once)
    with unruly(manner) as endpoint, worker(endpoint.url, program) as training:
        training.go_on()
        training.wait_for("delivered")
        assert training.end() == 0
        assert list(sums(endpoint.sink.metrics, DROPPED).values()) == [len(STEPS)]


@pytest.mark.parametrize("protocol", slow_after(1, ["http/protobuf", "grpc"]))
def test_with_nobody_listening_shutdown_keeps_to_its_time_and_says_what_is_lost(
    protocol: str,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with worker(url, SHUTDOWN, OTEL_EXPORTER_OTLP_PROTOCOL=protocol) as training:
            training.wait_for("trained")
            training.wait_for("took")
            assert training.end() == 0
    assert float(training.output.split("took")[1].split()[0]) < 12
    assert "lost are 20000 measurements and events" in training.output


def test_in_a_black_hole_shutdown_keeps_to_its_time_and_counts_what_it_could_not_even_queue() -> (
    None
):
    with unruly(black_hole) as endpoint, worker(endpoint.url, SHUTDOWN) as training:
        training.wait_for("took")
        assert training.end() == 0
    assert float(training.output.split("took")[1].split()[0]) < 12
    assert "lost are 20000 measurements and events" in training.output


@pytest.mark.slow
def test_requests_stay_below_what_a_server_takes() -> None:
    program = LOOP.replace("0.02", "60").replace("5_000", "100_000")
    with serve(Sink()) as sink, worker(sink.url, program) as training:
        training.go_on()
        training.wait_for("delivered")
        assert len(sink.measurements("loss")) == 100_001
        assert max(sink.sizes) <= 3 << 20


@pytest.mark.parametrize("manner", [cut_after, cut_within], ids=["cut after", "cut within"])
def test_after_a_lost_answer_the_same_bytes_come_again(manner: Manner) -> None:
    with unruly(manner) as endpoint, worker(endpoint.url, LOOP) as training:
        endpoint.wait_for_attempts(2)
        training.wait_for("trained")
        endpoint.heal()
        training.go_on()
        training.wait_for("delivered")
        sent = Counter(request.SerializeToString() for request in endpoint.sink.metrics)
        assert max(sent.values()) >= 2
        intervals = [
            (point.start_time_unix_nano, point.time_unix_nano)
            for request in {r.SerializeToString(): r for r in endpoint.sink.metrics}.values()
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name != HEARTBEAT
            for point in metric.gauge.data_points
        ]
        assert [start for start, _ in intervals[1:]] == [end for _, end in intervals[:-1]]
