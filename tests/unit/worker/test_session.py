import logging

import pytest
from opentelemetry import metrics, trace

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.transport import Outcome, Reply
from tests.otlp_sink import Sink, pairs


def test_a_worker_says_who_it_is(started: Sink) -> None:
    otel_rl.mlogger.log({"loss": 1.0}, step=1)
    assert otel_rl.flush(timeout_s=20)
    resource = started.measurements()[0].resource
    assert resource["rl.experiment.name"] == "exp"
    assert resource["rl.trial.name"] == "default"
    assert resource["rl.worker.role"] == "trainer"
    assert (resource["rl.worker.index"], resource["rl.worker.count"]) == (0, 2)
    assert resource["service.name"] == "otel_rl.trainer"
    assert resource["telemetry.distro.name"] == "otel_rl"
    assert {"rl.run.id", "service.instance.id", "host.name", "process.pid"} <= resource.keys()


def test_spans_and_measurements_are_of_one_instance(started: Sink) -> None:
    with trace.get_tracer("t").start_as_current_span("step"):
        otel_rl.mlogger.log({"loss": 1.0}, step=1)
    assert otel_rl.flush(timeout_s=20)
    started.wait(lambda sink: bool(sink.traces))
    (measured,) = started.measurements()
    (resource,) = started.traces[0].resource_spans
    instance = pairs(resource.resource.attributes)["service.instance.id"]
    assert instance == measured.resource["service.instance.id"]
    assert resource.scope_spans[0].spans[0].span_id.hex() == measured.span_id


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
    with pytest.raises(ConfigError, match=r"already reports as trainer 0 of exp/default") as caught:
        otel_rl.init(experiment="other", role="trainer")
    assert "shutdown()" in caught.value.hint


def test_after_shutdown_another_worker_may_begin_and_instruments_live_on(started: Sink) -> None:
    gauge = metrics.get_meter("m").create_gauge("g")
    gauge.set(1.0)
    assert otel_rl.shutdown(timeout_s=20)
    otel_rl.init(experiment="second", role="r", endpoint=started.url, export_interval_s=60)
    gauge.set(2.0)
    assert otel_rl.flush(timeout_s=20)
    found = [(m.value, m.resource["rl.experiment.name"]) for m in started.measurements("g")]
    assert found == [(1.0, "exp"), (2.0, "second")]


def test_after_shutdown_a_call_starts_no_worker_that_nobody_named(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_EXPERIMENT", "exp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    assert otel_rl.shutdown(timeout_s=20)
    before = session.GUARD.drops.counts().get(DropReason.NOT_STARTED, 0)
    otel_rl.mlogger.log({"loss": 1.0, "reward": 2.0}, step=1)
    assert session.running() is None
    assert session.GUARD.drops.counts()[DropReason.NOT_STARTED] == before + 2


def test_after_two_sessions_a_span_is_sent_once(started: Sink) -> None:
    otel_rl.shutdown(timeout_s=20)
    otel_rl.init(experiment="second", role="r", endpoint=started.url, export_interval_s=60)
    with trace.get_tracer("t").start_as_current_span("once"):
        pass
    otel_rl.shutdown(timeout_s=20)
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
        ({"experiment": "e"}, "role"),
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


def test_a_certificate_that_is_not_there_is_said_in_init(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem")
    with pytest.raises(ConfigError, match=r"/nowhere\.pem"):
        otel_rl.init(experiment="e", role="r")


def test_a_disabled_sdk_records_and_sends_nothing(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url)
    otel_rl.mlogger.log({"loss": 1.0}, step=1)
    assert otel_rl.shutdown(timeout_s=5)
    assert sink.requests == 0


def test_exporter_none_sends_no_metrics(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url)
    otel_rl.mlogger.log({"loss": 1.0}, step=1)
    metrics.get_meter("m").create_counter("c").add(1)
    assert otel_rl.shutdown(timeout_s=20)
    assert sink.requests == 0


def test_flush_and_shutdown_before_init_do_nothing(
    clean_environment: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not otel_rl.flush(timeout_s=1)
        assert otel_rl.shutdown(timeout_s=1)
    assert caplog.records == []


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
@pytest.mark.usefixtures("clean_environment")
def test_an_exit_waits_for_an_endpoint_that_starts_only_if_one_was_named(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, waits: bool
) -> None:
    # The urgent attempts of two seconds: more than the short wait has, fewer than the long one.
    monkeypatch.setattr(session, "open_transport", lambda *_: Absent(tries=8))
    otel_rl.init(experiment="exp", role="trainer", endpoint=endpoint, export_interval_s=60)
    running = session.running()
    assert running is not None
    otel_rl.mlogger.log({"loss": 1.0})
    assert running.shutdown_at_exit() is waits
    otel_rl.shutdown(timeout_s=0)
