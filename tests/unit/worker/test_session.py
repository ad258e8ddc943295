import logging
import sys
import threading
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from opentelemetry import metrics, trace

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.signals import Signal
from otel_rl.worker import lifetime, session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.export.sender import THREAD_NAME
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.launch import launch_of
from tests.support.otlp_requests import grpc_receiver
from tests.support.otlp_sink import OK, Answer, Sink, pairs


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of otel_rl: the SDK warns of providers that other tests have shut down."""
    return [one for one in caplog.records if one.name.startswith("otel_rl")]


def test_a_worker_says_who_it_is(started: Sink) -> None:
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.flush(timeout_s=60)
    resource = started.measurements()[0].resource
    assert resource["rl.experiment.name"] == "exp"
    assert resource["rl.trial.name"] == launch_of({}).id
    assert resource["rl.worker.role"] == "trainer"
    assert (resource["rl.worker.index"], resource["rl.worker.count"]) == (0, 2)
    assert resource["service.name"] == "otel_rl.trainer"
    assert resource["telemetry.distro.name"] == "otel_rl"
    assert {"rl.run.id", "service.instance.id", "host.name", "process.pid"} <= resource.keys()


def test_spans_and_measurements_are_of_one_instance(started: Sink) -> None:
    with trace.get_tracer("t").start_as_current_span("step"):
        otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.flush(timeout_s=60)
    started.wait(lambda sink: bool(sink.traces))
    (measured,) = started.measurements()
    (resource,) = started.traces[0].resource_spans
    instance = pairs(resource.resource.attributes)["service.instance.id"]
    assert instance == measured.resource["service.instance.id"]
    assert resource.scope_spans[0].spans[0].span_id.hex() == measured.span_id


def test_in_a_process_of_ray_what_is_recorded_is_sent_before_the_interval_is_over(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_losses(count: int, sink: Sink) -> bool:
        return len(sink.measurements("loss")) == count

    monkeypatch.setattr(sys, "argv", ["/ray/workers/default_worker.py"])
    otel_rl.init(experiment="exp", role="actor", endpoint=sink.url, export_interval_s=600)
    try:
        for count in range(1, 4):
            otel_rl.log({"loss": 1.0}, step=count)
            sink.wait(partial(has_losses, count))
        with otel_rl.step(4):
            pass
        sink.wait(lambda sink: bool(sink.traces))
        sink.wait(lambda sink: any(m.step == 4 for m in sink.measurements("rl.iteration.duration")))
        otel_rl.log_samples([{"prompt": "p"}], step=4)
        sink.wait(lambda sink: bool(sink.events("rl.rollout.sample")))
    finally:
        otel_rl.finish(timeout_s=60)


def test_the_same_init_again_does_nothing(started: Sink) -> None:
    before = session.running()
    otel_rl.init(
        experiment="exp",
        role="trainer",
        index=0,
        count=2,
        endpoint=started.url,
        export_interval_s=60,
    )
    assert session.running() is before


def test_another_init_is_refused_with_the_way_out(started: Sink) -> None:
    with pytest.raises(ConfigError, match=r"already reports as trainer 0 of exp/") as caught:
        otel_rl.init(experiment="other", role="trainer")
    assert "finish()" in caught.value.hint


def test_after_shutdown_another_worker_may_begin_and_instruments_live_on(started: Sink) -> None:
    gauge = metrics.get_meter("m").create_gauge("g")
    gauge.set(1.0)
    assert otel_rl.finish(timeout_s=60)
    otel_rl.init(experiment="second", role="r", endpoint=started.url, export_interval_s=60)
    gauge.set(2.0)
    assert otel_rl.flush(timeout_s=60)
    found = [(m.value, m.resource["rl.experiment.name"]) for m in started.measurements("g")]
    assert found == [(1.0, "exp"), (2.0, "second")]


def test_a_run_whose_end_gave_up_takes_nothing_of_the_next_run(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_EXIT_TIMEOUT", "2")
    is_awake, hung = Event(), Event()

    def hang(_number: int) -> Answer:
        hung.set()
        is_awake.wait(90)
        return OK

    init = partial(otel_rl.init, role="trainer", endpoint=sink.url, export_interval_s=60)
    init(experiment="first")
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.flush(timeout_s=60)
    threads = [one for one in threading.enumerate() if one.name == THREAD_NAME]
    sink.answer = hang
    otel_rl.log({"loss": 2.0}, step=2)
    assert not otel_rl.finish()
    assert hung.is_set()
    init(experiment="second")
    otel_rl.log({"loss": 3.0}, step=3)
    is_awake.set()
    for thread in threads:
        thread.join(90)
    assert not sink.events("rl.worker.end")
    assert otel_rl.finish(timeout_s=60)
    assert [e.resource["rl.experiment.name"] for e in sink.events("rl.worker.end")] == ["second"]
    found = [(m.value, m.resource["rl.experiment.name"]) for m in sink.measurements("loss")]
    assert found == [(1.0, "first"), (2.0, "first"), (3.0, "second")]


def test_after_shutdown_a_call_starts_no_worker_that_nobody_named(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_EXPERIMENT", "exp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    assert otel_rl.finish(timeout_s=60)
    before = session.GUARD.drops.counts().get(DropReason.NOT_STARTED, 0)
    otel_rl.log({"loss": 1.0, "reward": 2.0}, step=1)
    assert session.running() is None
    assert session.GUARD.drops.counts()[DropReason.NOT_STARTED] == before + 2


def test_after_two_sessions_a_span_is_sent_once(started: Sink) -> None:
    otel_rl.finish(timeout_s=60)
    otel_rl.init(experiment="second", role="r", endpoint=started.url, export_interval_s=60)
    with trace.get_tracer("t").start_as_current_span("once"):
        pass
    otel_rl.finish(timeout_s=60)
    names = [
        span.name
        for request in started.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert names == ["once"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "r"}, "experiment"),
        ({"experiment": "e", "mode": "disabled"}, "mode"),
        ({"experiment": "e", "role": "r", "endpoint": "nowhere"}, "endpoint"),
        ({"experiment": "e", "role": "r", "export_interval_s": -1}, "export_interval_s"),
    ],
)
def test_a_bad_argument_raises_before_anything_is_started(
    clean_environment: None, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        otel_rl.init(**arguments)  # type: ignore[arg-type]  # bad types are the point
    assert session.running() is None


FILES = [
    f"OTEL_EXPORTER_OTLP_{signal}{file}"
    for signal in ("", "METRICS_", "TRACES_", "LOGS_")
    for file in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
]


@pytest.mark.parametrize("variable", FILES)
def test_a_file_that_is_not_there_is_named_in_init(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/nowhere.pem")
    with pytest.raises(ConfigError, match=rf"^{variable}: .*/nowhere\.pem"):
        otel_rl.init(experiment="e", role="r")
    assert session.running() is None


def test_a_file_that_cannot_be_read_is_named_in_init_with_the_reason(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^OTEL_EXPORTER_OTLP_CLIENT_KEY: Is a directory"):
        otel_rl.init(experiment="e", role="r")


def test_a_file_of_a_signal_that_is_not_sent_may_be_missing(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, sink: Sink
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/nowhere.pem")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url)
    assert otel_rl.finish(timeout_s=60)


def test_a_worker_that_the_environment_starts_is_told_of_a_missing_file_too(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_has_ended", False)
    monkeypatch.setenv("OTEL_RL_EXPERIMENT", "e")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/nowhere.pem")
    with pytest.raises(ConfigError, match=r"^OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE: "):
        session.implicit_session()


def test_a_disabled_sdk_records_and_sends_nothing(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url)
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.finish(timeout_s=60)
    assert sink.requests == 0


def test_exporter_none_sends_no_metrics(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url)
    otel_rl.log({"loss": 1.0}, step=1)
    metrics.get_meter("m").create_counter("c").add(1)
    assert otel_rl.finish(timeout_s=60)
    assert sink.requests == 0


def test_an_exporter_that_otel_rl_does_not_have_is_said_in_init_and_gets_no_otlp(
    sink: Sink,
    clean_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url)
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.finish(timeout_s=60)
    assert sink.metrics == []
    (record,) = ours(caplog)
    assert record.message.startswith("OTEL_METRICS_EXPORTER=console: ")


DROPPED = "otel_rl.worker.measurements.dropped"


def dropped_by_role(sink: Sink, name: str = DROPPED) -> dict[object, float]:
    """The last total of each role, over all reasons, of those that were added by the test."""
    found: dict[tuple[object, object], float] = {}
    for request in sink.metrics:
        for resource in request.resource_metrics:
            role = pairs(resource.resource.attributes)["rl.worker.role"]
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.sum.data_points:
                            reason = pairs(point.attributes)["rl.reason"]
                            if reason in (DropReason.NO_STAMP, DropReason.TOO_LARGE):
                                found[role, reason] = point.as_int
    return {role: sum(n for (r, _), n in found.items() if r == role) for role, _ in found}


@pytest.mark.usefixtures("clean_environment")
def test_what_a_worker_has_lost_is_not_counted_again_by_the_next_one(sink: Sink) -> None:
    otel_rl.init(experiment="e", role="first", endpoint=sink.url, export_interval_s=60)
    session.GUARD.drop(DropReason.NO_STAMP, "lost", 3)
    running = session.running()
    assert running is not None
    running.providers.spans.guard.drop(DropReason.TOO_LARGE, "lost", 5)
    assert otel_rl.finish(timeout_s=60)
    otel_rl.init(experiment="e", role="second", endpoint=sink.url, export_interval_s=60)
    session.GUARD.drop(DropReason.NO_STAMP, "lost", 4)
    assert otel_rl.finish(timeout_s=60)
    assert dropped_by_role(sink)["first"] >= 3
    assert dropped_by_role(sink)["second"] == 4
    assert "second" not in dropped_by_role(sink, "otel_rl.worker.spans.dropped")


@pytest.mark.usefixtures("clean_environment")
def test_what_was_lost_under_a_guess_is_counted_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_has_ended", False)  # by the sessions of other tests
    monkeypatch.setenv("OTEL_RL_EXPERIMENT", "e")
    monkeypatch.setenv("OTEL_RL_ROLE", "guessed")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
    assert session.start_from_environment() is not None
    session.GUARD.drop(DropReason.NO_STAMP, "lost", 3)
    assert otel_rl.flush(timeout_s=60)
    otel_rl.init(role="named")
    session.GUARD.drop(DropReason.NO_STAMP, "lost", 4)
    assert otel_rl.finish(timeout_s=60)
    assert dropped_by_role(sink)["named"] == 4


@pytest.mark.usefixtures("clean_environment")
def test_a_grpc_endpoint_without_a_scheme_is_reached_without_tls_if_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with grpc_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.server.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
        otel_rl.init(experiment="e", role="r", export_interval_s=60)
        otel_rl.log({"loss": 1.0}, step=1)
        assert otel_rl.finish(timeout_s=60)
        assert receiver.journal.take()


def lost_spans(sink: Sink) -> dict[object, float]:
    """The last total of each reason."""
    return {
        pairs(point.attributes)["rl.reason"]: point.as_int
        for request in sink.metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "otel_rl.worker.spans.dropped"
        for point in metric.sum.data_points
    }


def test_spans_that_end_after_the_program_has_ended_its_tracing_are_counted(
    started: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    running = session.running()
    assert running is not None
    tracer = running.providers.tracer.get_tracer("t")
    running.providers.spans.guard._next_log_s.clear()  # of other tests
    spans = [tracer.start_span(str(n)) for n in range(3)]
    running.providers.tracer.shutdown()
    for span in spans:
        span.end()
    assert otel_rl.flush(timeout_s=60)
    assert lost_spans(started) == {"not_started": 3}
    (record,) = ours(caplog)
    assert "spans" in record.message


@pytest.mark.usefixtures("clean_environment")
def test_spans_that_end_after_shutdown_are_counted_by_the_next_worker(sink: Sink) -> None:
    otel_rl.init(experiment="e", role="first", endpoint=sink.url, export_interval_s=60)
    running = session.running()
    assert running is not None
    span = running.providers.tracer.get_tracer("t").start_span("s")
    assert otel_rl.finish(timeout_s=60)
    span.end()
    otel_rl.init(experiment="e", role="second", endpoint=sink.url, export_interval_s=60)
    assert otel_rl.finish(timeout_s=60)
    assert lost_spans(sink) == {"not_started": 1}


@pytest.mark.usefixtures("clean_environment")
def test_spans_that_are_not_wanted_are_not_counted(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    otel_rl.init(experiment="e", role="first", endpoint=sink.url, export_interval_s=60)
    assert otel_rl.finish(timeout_s=60)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    otel_rl.init(experiment="e", role="second", endpoint=sink.url, export_interval_s=60)
    running = session.running()
    assert running is not None
    running.providers.tracer.get_tracer("t").start_span("s").end()
    assert otel_rl.finish(timeout_s=60)
    running.providers.tracer.get_tracer("t").start_span("s").end()
    assert lost_spans(sink) == {}


@pytest.mark.usefixtures("clean_environment")
def test_a_launchers_place_that_is_none_is_said_once(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "4")
    for _ in range(2):
        otel_rl.init(experiment="e", role="trainer", endpoint=sink.url, export_interval_s=60)
    assert otel_rl.finish(timeout_s=60)
    (record,) = ours(caplog)
    assert "RANK=9 with WORLD_SIZE=4" in record.message
    assert "OTEL_RL_INDEX" in record.message


@pytest.mark.usefixtures("clean_environment")
def test_a_launchers_place_that_is_none_is_not_said_where_another_is_known(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "4")
    otel_rl.init(experiment="e", role="trainer", index=1, endpoint=sink.url)
    assert otel_rl.finish(timeout_s=60)
    assert ours(caplog) == []


def test_flush_and_shutdown_before_init_do_nothing(
    clean_environment: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not otel_rl.flush(timeout_s=1)
        assert otel_rl.finish(timeout_s=60)
    assert ours(caplog) == []


class Absent:
    """A transport to where nobody listens until it has been tried ``tries`` times."""

    def __init__(self, tries: int) -> None:
        self.tries = tries

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, _body: bytes) -> Reply:
        self.tries -= 1
        if self.tries < 0:
            return Reply(Outcome.ACCEPTED)
        return Reply(Outcome.RETRY, "connection refused", unreachable=True)

    def close(self) -> None:
        return


@pytest.mark.parametrize(
    ("endpoint", "waits"), [(None, False), ("http://bridge.that.starts:4318", True)]
)
@pytest.mark.parametrize("is_exit", [True, False])
@pytest.mark.usefixtures("clean_environment")
def test_an_end_waits_for_an_endpoint_that_starts_only_if_one_was_named(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, waits: bool, is_exit: bool
) -> None:
    monkeypatch.setenv("OTEL_RL_EXIT_TIMEOUT", "60")
    # The urgent attempts of two seconds: more than the short wait has, fewer than the long one.
    absent = dict.fromkeys(Signal, Absent(tries=8))
    monkeypatch.setattr(lifetime, "open_transports", lambda _: absent)
    otel_rl.init(experiment="exp", role="trainer", endpoint=endpoint, export_interval_s=60)
    running = session.running()
    assert running is not None
    otel_rl.log({"loss": 1.0})
    end = running.shutdown_at_exit if is_exit else otel_rl.finish
    assert end() is waits
    otel_rl.finish(timeout_s=0)


@pytest.mark.parametrize(("timeout", "waits"), [("0.001", False), ("60", True)])
@pytest.mark.usefixtures("clean_environment")
def test_an_exit_waits_as_long_as_the_user_says(
    monkeypatch: pytest.MonkeyPatch, timeout: str, waits: bool
) -> None:
    monkeypatch.setenv("OTEL_RL_EXIT_TIMEOUT", timeout)
    absent = dict.fromkeys(Signal, Absent(tries=3))
    monkeypatch.setattr(lifetime, "open_transports", lambda _: absent)
    otel_rl.init(endpoint="http://bridge.that.starts:4318", experiment="exp", role="trainer")
    running = session.running()
    assert running is not None
    otel_rl.log({"loss": 1.0})
    assert running.shutdown_at_exit() is waits
    otel_rl.finish(timeout_s=0)


@pytest.mark.parametrize(("timeout", "waits"), [("0.001", False), ("60", True)])
@pytest.mark.parametrize("call", ["finish", "flush"])
@pytest.mark.usefixtures("clean_environment")
def test_a_call_that_names_no_time_waits_as_long_as_the_user_says(
    monkeypatch: pytest.MonkeyPatch, call: str, timeout: str, waits: bool
) -> None:
    monkeypatch.setenv("OTEL_RL_EXIT_TIMEOUT", timeout)
    absent = dict.fromkeys(Signal, Absent(tries=3))
    monkeypatch.setattr(lifetime, "open_transports", lambda _: absent)
    otel_rl.init(endpoint="http://bridge.that.starts:4318", experiment="exp", role="trainer")
    otel_rl.log({"loss": 1.0})
    assert getattr(otel_rl, call)() is waits
    otel_rl.finish(timeout_s=0)
