"""What a program says of its run, as a receiver reads it."""

import logging
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from opentelemetry import trace

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.worker.drops import DropReason
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Event, Sink, serve

START, END, BYE = "rl.experiment.start", "rl.experiment.end", "rl.worker.end"
SAMPLE = "rl.rollout.sample"


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test hears of what another one has lost, or left running."""
    GUARD.drops.reset()
    monkeypatch.setattr(GUARD, "_next_log_s", {})  # what is said here is news elsewhere
    yield
    otel_rl.finish(timeout_s=1)


@pytest.fixture
def no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another test has left as the last uncaught exception."""
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)


@pytest.fixture
def worker(sink: Sink, clean_environment: None, no_failure: None) -> Sink:
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=60)
    return sink


def said(sink: Sink, name: str | None = None) -> list[Event]:
    """The events that have arrived once everything has been delivered."""
    assert otel_rl.flush(timeout_s=60)
    return sink.events(name)


def about(event: Event) -> dict[str, object]:
    return {key: value for key, value in event.attributes.items() if key != "log.record.uid"}


@pytest.mark.usefixtures("clean_environment")
def test_init_says_all_that_it_is_told_of_the_run(sink: Sink) -> None:
    otel_rl.init(
        experiment="exp",
        role="trainer",
        endpoint=sink.url,
        config={"lr": 1e-5, "model": {"name": "q"}},
        notes="a note",
        tags=["grpo", "7b"],
        group="sweep",
        job_type="train",
    )
    (start,) = said(sink)
    assert start.name == START
    assert about(start) == {
        "rl.experiment.config": {"lr": 1e-5, "model": {"name": "q"}},
        "rl.experiment.notes": "a note",
        "rl.experiment.tags": ["grpo", "7b"],
        "rl.experiment.group": "sweep",
        "rl.experiment.job_type": "train",
    }
    assert start.resource["rl.experiment.name"] == "exp"


def test_init_says_that_the_run_runs_before_the_first_measurement(worker: Sink) -> None:
    otel_rl.log({"loss": 1.0}, step=1)
    (start,) = said(worker)
    assert (start.name, about(start)) == (START, {})
    assert worker.order[0] == "/v1/logs"


def test_the_same_init_with_more_to_say_says_it(worker: Sink) -> None:
    otel_rl.init(
        experiment="exp",
        role="trainer",
        endpoint=worker.url,
        export_interval_s=60,
        config={"lr": 2},
    )
    assert [about(event) for event in said(worker)] == [{}, {"rl.experiment.config": {"lr": 2}}]


BAD_ARGUMENTS = [
    ({"config": [1]}, "config: must be a mapping"),
    ({"tags": "grpo"}, "tags: must be a list of text"),
    ({"tags": [1]}, r"tags\[0\]: must be text"),
    ({"tags": ["a"] * 65}, "tags: must be at most 64"),
    ({"group": "g" * 129}, "group: must have 1 to 128 printable characters"),
    ({"group": "a\nb"}, "group: must have 1 to 128 printable characters"),
    ({"tags": [" "]}, r"tags\[0\]: must have 1 to 128 printable characters"),
    ({"job_type": 7}, "job_type: must be text"),
    ({"notes": 7}, "notes: must be text"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
@pytest.mark.usefixtures("clean_environment")
def test_init_refuses_what_cannot_be_said(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        otel_rl.init(experiment="exp", role="trainer", **arguments)  # type: ignore[arg-type]  # bad types are the point


def test_more_config_is_said_as_it_was_at_the_call(worker: Sink) -> None:
    config: dict[str, object] = {"lr": 1}
    otel_rl.log_config(config)
    config["lr"] = 2
    assert about(said(worker, START)[-1]) == {"rl.experiment.config": {"lr": 1}}


def test_a_setting_that_is_too_large_is_left_out_and_counted(
    worker: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "otel_rl"):
        otel_rl.log_config({"lr": 1, "vocabulary": list(range(20_000))})
    assert about(said(worker, START)[-1]) == {"rl.experiment.config": {"lr": 1}}
    assert GUARD.drops.counts() == {DropReason.TOO_LARGE: 1}
    assert "left out: vocabulary" in caplog.text


def test_a_sample_keeps_its_fields_in_order_with_their_types(worker: Sink) -> None:
    sample = {
        "prompt": "1+1?",
        "completion": "2",
        "reward": np.float32(0.5),
        "tokens": 3,
        "ok": True,
        "parts": [1, 2],
        "judge": None,
        "logits": np.zeros(4),
    }
    otel_rl.log_samples([sample], step=7, name="validation")
    (event,) = said(worker, SAMPLE)
    assert about(event) == {"rl.loop.iteration": 7, "rl.sample.table": "validation"}
    assert isinstance(event.body, dict)
    assert list(event.body.items()) == [
        ("prompt", "1+1?"),
        ("completion", "2"),
        ("reward", 0.5),
        ("tokens", 3),
        ("ok", True),
        ("parts", "[1, 2]"),
        ("judge", None),
        ("logits", "ndarray of shape (4,)"),
    ]


class Failed:
    """A value whose device has failed."""

    dtype, shape = "float32", ()

    def item(self) -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_field_that_cannot_be_read_costs_no_measurement_and_no_other_field(
    worker: Sink,
) -> None:
    otel_rl.log({"loss": 0.5}, step=1)
    otel_rl.log_samples([{"prompt": "1+1?", "reward": Failed()}])
    (event,) = said(worker, SAMPLE)
    assert event.body == {"prompt": "1+1?", "reward": "unreadable Failed"}
    assert [one.value for one in worker.measurements("loss")] == [0.5]
    assert GUARD.drops.counts() == {DropReason.INTERNAL: 1}


def test_an_array_in_a_sample_has_the_value_of_the_call(worker: Sink) -> None:
    reward = np.array(1.0)
    otel_rl.log_samples([{"reward": reward}])
    reward += 1
    (event,) = said(worker, SAMPLE)
    assert event.body == {"reward": 1.0}


def test_a_long_text_is_cut_with_a_mark_and_counted(worker: Sink) -> None:
    otel_rl.log_samples([{"completion": "a" * 20_000}])
    (event,) = said(worker, SAMPLE)
    assert event.body == {"completion": "a" * 16_384 + " [... 3616 characters cut]"}
    assert GUARD.drops.counts() == {DropReason.TEXT_CUT: 1}


def test_all_texts_of_a_sample_have_a_bound_together(worker: Sink) -> None:
    otel_rl.log_samples([{str(number): "a" * 16_000 for number in range(6)}])
    (event,) = said(worker, SAMPLE)
    assert isinstance(event.body, dict)
    assert sum(str(text).count("a") for text in event.body.values()) < 65_536 + 20
    assert list(event.body) == [str(number) for number in range(6)]


def test_more_samples_than_a_call_takes_are_counted(worker: Sink) -> None:
    otel_rl.log_samples([{"n": number} for number in range(300)])
    assert [event.body for event in said(worker, SAMPLE)] == [{"n": n} for n in range(256)]
    assert GUARD.drops.counts() == {DropReason.TOO_MANY_SAMPLES: 44}


def test_a_bad_sample_costs_itself_only(worker: Sink) -> None:
    otel_rl.log_samples([{"n": 1}, "text", {}, {"n": 2}])  # type: ignore[list-item]  # on purpose
    assert [event.body for event in said(worker, SAMPLE)] == [{"n": 1}, {"n": 2}]
    assert GUARD.drops.counts() == {DropReason.BAD_SAMPLE: 2}


def test_names_of_tables_and_fields_are_printable(worker: Sink) -> None:
    otel_rl.log_samples([{"a\nb": 1, "": 2, "x" * 99: 3}], name=" \t")
    (event,) = said(worker, SAMPLE)
    assert event.body == {"a b": 1, "_": 2, "x" * 64: 3}
    assert event.attributes["rl.sample.table"] == "_"


def test_samples_at_a_step_that_is_none_are_dropped(worker: Sink) -> None:
    otel_rl.log_samples([{"n": 1}], step="seven")  # type: ignore[arg-type]  # on purpose
    assert said(worker, SAMPLE) == []
    assert GUARD.drops.counts() == {DropReason.BAD_STEP: 1}


@pytest.mark.parametrize("wrong", [7, "prompt", {"prompt": "a", "completion": "b"}, None])
def test_what_is_no_list_of_samples_at_all_is_one_loss(worker: Sink, wrong: object) -> None:
    otel_rl.log_samples(wrong)  # type: ignore[arg-type]  # on purpose
    assert said(worker, SAMPLE) == []
    assert GUARD.drops.counts() == {DropReason.BAD_SAMPLE: 1}


@pytest.mark.parametrize("wrong", [7, "lr", [("lr", 1)], None])
def test_a_config_that_is_no_mapping_is_one_loss(worker: Sink, wrong: object) -> None:
    otel_rl.log_config(wrong)  # type: ignore[arg-type]  # on purpose
    assert GUARD.drops.counts() == {DropReason.BAD_ATTRIBUTES: 1}


def test_samples_beyond_the_room_are_counted_and_config_still_has_some(worker: Sink) -> None:
    text = "a" * 16_000
    for _ in range(4):
        otel_rl.log_samples([{"t": text, "u": text, "v": text}] * 256)
    otel_rl.log_config({"lr": 1})
    assert about(said(worker, START)[-1]) == {"rl.experiment.config": {"lr": 1}}
    arrived = len(worker.events(SAMPLE))
    assert GUARD.drops.counts() == {DropReason.BUFFER_FULL: 1024 - arrived}


def test_the_end_of_a_run_is_said_after_what_was_measured_before_it(worker: Sink) -> None:
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.finish("aborted", timeout_s=60)
    (end,) = worker.events(END)
    assert about(end) == {"rl.experiment.status": "aborted"}
    assert [event.name for event in worker.events()][-2:] == [END, BYE]
    assert worker.order.index("/v1/metrics") < len(worker.order) - 2
    otel_rl.log({"loss": 1.0}, step=2)
    assert GUARD.drops.counts() == {DropReason.NOT_STARTED: 1}


def test_a_worker_whose_error_ends_the_run_has_failed(worker: Sink) -> None:
    try:
        raise ValueError("x")
    except ValueError:
        assert otel_rl.finish("crashed", timeout_s=60)
    (end,), (bye,) = worker.events(END), worker.events(BYE)
    assert about(end) == {"rl.experiment.status": "crashed"}
    assert about(bye) == {"rl.worker.status": "failed", "error.type": "ValueError"}


def test_a_status_that_is_none_is_not_said(worker: Sink) -> None:
    assert otel_rl.finish("done", timeout_s=60)
    assert worker.events(END) == []
    assert GUARD.drops.counts() == {DropReason.BAD_STATUS: 1}


def test_a_worker_says_goodbye_after_everything_else(worker: Sink) -> None:
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.finish(timeout_s=60)
    bye = worker.events()[-1]
    assert (bye.name, about(bye)) == (BYE, {"rl.worker.status": "complete"})
    assert worker.order[-2:] == ["/v1/metrics", "/v1/logs"]


def test_a_goodbye_names_the_error_that_nobody_caught(
    worker: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", ConfigError("x"), raising=False)
    assert otel_rl.finish(timeout_s=60)
    assert about(worker.events(BYE)[0]) == {
        "rl.worker.status": "failed",
        "error.type": "otel_rl.errors.ConfigError",
    }


def test_an_error_at_a_prompt_is_no_failure(worker: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert otel_rl.finish(timeout_s=60)
    assert about(worker.events(BYE)[0]) == {"rl.worker.status": "complete"}


@pytest.mark.usefixtures("worker")
def test_every_event_of_a_process_has_an_id_of_its_own_over_sessions(sink: Sink) -> None:
    otel_rl.finish(timeout_s=60)
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url)
    otel_rl.finish(timeout_s=60)
    assert [event.name for event in sink.events()] == [START, BYE, START, BYE]
    ids = [str(event.attributes["log.record.uid"]) for event in sink.events()]
    instances = {uid.rpartition("/")[0] for uid in ids}
    assert instances == {sink.events()[0].resource["service.instance.id"]}
    numbers = [int(uid.rpartition("/")[2]) for uid in ids]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


@pytest.mark.usefixtures("clean_environment")
def test_without_a_worker_what_is_said_is_counted_and_does_not_raise() -> None:
    otel_rl.log_config({"lr": 1})
    otel_rl.log_samples([{"n": 1}])
    otel_rl.finish("complete")
    assert GUARD.drops.counts() == {DropReason.NOT_STARTED: 3}


def test_an_endpoint_without_logs_costs_events_only(
    worker: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    worker.answer_events = lambda _number: (404, {}, b"")
    with caplog.at_level(logging.WARNING, "otel_rl"):
        for step in range(3):
            otel_rl.log_samples([{"n": step}])
            otel_rl.log({"loss": 1.0}, step=step)
            assert otel_rl.flush(timeout_s=60)
    assert [m.step for m in worker.measurements("loss")] == [0, 1, 2]
    assert GUARD.drops.counts() == {DropReason.REJECTED: 3}
    assert caplog.text.count("accepts no log events") == 1


def test_an_endpoint_whose_logs_are_away_keeps_no_measurement_back(worker: Sink) -> None:
    worker.answer_events = lambda _number: (503, {}, b"")
    otel_rl.log_config({"lr": 1})
    otel_rl.log({"loss": 1.0}, step=1)
    assert not otel_rl.flush(timeout_s=0.3)
    worker.wait(lambda got: bool(got.measurements("loss")))  # on its way, if not there yet
    assert [m.step for m in worker.measurements("loss")] == [1]
    worker.answer_events = lambda _number: (200, {}, b"")
    assert about(said(worker, START)[-1]) == {"rl.experiment.config": {"lr": 1}}


@pytest.mark.usefixtures("clean_environment", "no_failure")
def test_events_may_be_switched_off(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, config={"lr": 1})
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.finish(timeout_s=60)
    assert sink.event_requests == 0


@pytest.mark.usefixtures("clean_environment", "no_failure")
def test_events_may_go_elsewhere(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Sink()) as elsewhere:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"{elsewhere.url}/v1/logs")
        otel_rl.init(experiment="exp", role="trainer")
        otel_rl.log({"loss": 1.0}, step=1)
        assert otel_rl.finish(timeout_s=60)
        assert [event.name for event in elsewhere.events()] == [START, BYE]
        assert (sink.event_requests, elsewhere.requests) == (0, 0)


@pytest.mark.usefixtures("clean_environment", "no_failure")
def test_many_samples_go_in_requests_that_a_server_takes(sink: Sink) -> None:
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=60)
    text = "é" * 16_000
    otel_rl.log_samples([{"n": n, "t": text, "u": text} for n in range(200)])
    assert otel_rl.flush(timeout_s=60)
    bodies = [event.body for event in sink.events(SAMPLE)]
    assert [body["n"] for body in bodies if isinstance(body, dict)] == list(range(200))
    assert max(request.ByteSize() for request in sink.logs) <= 3 << 20


def test_a_sample_within_a_span_carries_its_ids(worker: Sink) -> None:
    with trace.get_tracer("t").start_as_current_span("score") as span:
        otel_rl.log_samples([{"reward": 1.0}], step=1)
    otel_rl.log_samples([{"reward": 0.0}], step=1)
    assert otel_rl.flush(timeout_s=60)
    records = [
        record
        for request in worker.logs
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
        if record.event_name == SAMPLE
    ]
    context = span.get_span_context()
    assert [(record.trace_id, record.span_id) for record in records] == [
        (context.trace_id.to_bytes(16), context.span_id.to_bytes(8)),
        (b"", b""),
    ]
