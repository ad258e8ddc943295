"""Log events to what they say."""

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.records import (
    Announcement,
    Batch,
    Decoded,
    Departure,
    ExperimentKey,
    ExperimentStatus,
    Export,
    Provenance,
    Signal,
    Value,
    Worker,
)
from tests.support.doors import decode
from tests.support.otlp_requests import Attributes, any_value, event, logs_request

RECEIVED_NS = 99

RESOURCE: Attributes = {
    "rl.experiment.name": "x",
    "rl.worker.role": "trainer",
    "rl.worker.index": 1,
    "rl.worker.count": 2,
    "service.instance.id": "one",
}
TRAINER = Worker("trainer", "//one", 1, 2)


def decoded(*records: LogRecord) -> Decoded:
    request = logs_request(*records, resource=RESOURCE)
    payload = request.SerializeToString()
    return decode(Batch(ExperimentKey("x"), Signal.LOGS, payload, RECEIVED_NS))


def test_a_start_announces_the_config_and_all_that_is_said_of_the_run() -> None:
    start = event(
        "rl.experiment.start",
        {
            "rl.experiment.config": {"lr": 0.1, "model": {"name": "qwen", "layers": [1, 2]}},
            "rl.experiment.config_defaults": {"seed": 1},
            "rl.experiment.notes": "why",
            "rl.experiment.tags": ["a", "b"],
            "rl.experiment.group": "sweep",
            "rl.experiment.job_type": "train",
        },
        time_ns=7,
    )
    (said,) = decoded(start).announcements
    assert said == Announcement(
        7,
        ExperimentStatus.RUNNING,
        {"lr": 0.1, "model": {"name": "qwen", "layers": [1, 2]}},
        "why",
        ["a", "b"],
        "sweep",
        "train",
        defaults={"seed": 1},
    )


def test_a_start_may_say_nothing() -> None:
    (said,) = decoded(event("rl.experiment.start", {}, time_ns=7)).announcements
    assert said == Announcement(7, ExperimentStatus.RUNNING)


@pytest.mark.parametrize("word", ["complete", "aborted", "crashed"])
def test_an_end_says_how(word: str) -> None:
    end = event("rl.experiment.end", {"rl.experiment.status": word}, time_ns=7)
    (said,) = decoded(end).announcements
    assert said == Announcement(7, ExperimentStatus(word))


@pytest.mark.parametrize(("word", "failed"), [("complete", False), ("failed", True)])
def test_a_worker_says_goodbye(word: str, *, failed: bool) -> None:
    found = decoded(event("rl.worker.end", {"rl.worker.status": word}, time_ns=7))
    assert found.departures == [Departure(TRAINER, 7, failed)]


def test_a_failed_worker_says_what_ended_it() -> None:
    said: dict[str, Value] = {
        "rl.worker.status": "failed",
        "error.type": "RuntimeError",
        "exception.message": "no memory",
        "rl.loop.iteration": 3,
    }
    found = decoded(event("rl.worker.end", said, time_ns=7))
    assert found.departures == [
        Departure(TRAINER, 7, failed=True, error="RuntimeError", message="no memory", step=3)
    ]


def test_an_error_that_has_left_a_step_is_no_end() -> None:
    said: dict[str, Value] = {"error.type": "RuntimeError", "rl.loop.iteration": 3}
    found = decoded(event("rl.worker.error", said, time_ns=7))
    assert found.departures == [
        Departure(TRAINER, 7, failed=True, error="RuntimeError", step=3, has_ended=False)
    ]


def test_a_sample_has_the_fields_of_its_body_in_their_order() -> None:
    body: dict[str, Value] = {"prompt": "2+2?", "completion": "4", "reward": 1.0, "correct": True}
    attributes: dict[str, Value] = {"rl.loop.iteration": 3, "rl.sample.table": "eval"}
    (sample,) = decoded(event("rl.rollout.sample", attributes, body, time_ns=7)).samples
    assert (sample.worker, sample.table, sample.step, sample.time_ns) == (TRAINER, "eval", 3, 7)
    assert list(sample.fields.items()) == list(body.items())


def test_a_sample_of_bare_text_is_one_field() -> None:
    (sample,) = decoded(event("rl.rollout.sample", {}, "hello", time_ns=7)).samples
    assert (sample.table, sample.step, sample.fields) == ("samples", None, {"text": "hello"})


def test_an_event_may_be_named_by_the_attribute_that_sdks_had_before() -> None:
    record = LogRecord(time_unix_nano=7)
    record.attributes.add(key="event.name", value=any_value("rl.worker.end"))
    assert len(decoded(record).departures) == 1


def test_an_event_without_a_time_has_that_of_its_observation_or_arrival() -> None:
    observed = event("rl.worker.end", time_ns=0)
    observed.observed_time_unix_nano = 5
    departures = decoded(observed, event("rl.worker.end", time_ns=0)).departures
    assert [departure.time_ns for departure in departures] == [5, RECEIVED_NS]


def test_events_are_a_lease_and_say_nothing_of_a_workers_measurements() -> None:
    assert decoded(event("rl.experiment.start", {}, time_ns=7)).exports == [Export(TRAINER, 0)]


def digests(*records: LogRecord) -> list[int]:
    return [sample.digest for sample in decoded(*records).samples]


def test_a_sample_is_known_by_its_uid_alone() -> None:
    one = event("rl.rollout.sample", {"log.record.uid": "one-1"}, {"text": "a"}, time_ns=7)
    again = event("rl.rollout.sample", {"log.record.uid": "one-1"}, {"text": "b"}, time_ns=7)
    other = event("rl.rollout.sample", {"log.record.uid": "one-2"}, {"text": "a"}, time_ns=7)
    first, repeated, different = digests(one, again, other)
    assert first == repeated != different


def test_a_sample_without_a_uid_is_known_by_all_that_it_says() -> None:
    one = event("rl.rollout.sample", {}, {"text": "a"}, time_ns=7)
    observed = event("rl.rollout.sample", {}, {"text": "a"}, time_ns=7)
    observed.observed_time_unix_nano = 8
    other = event("rl.rollout.sample", {}, {"text": "b"}, time_ns=7)
    first, repeated, different = digests(one, observed, other)
    assert first == repeated != different


def test_the_start_of_a_worker_tells_what_it_runs() -> None:
    start = event(
        "rl.worker.start",
        {
            "process.command_args": ["train.py", "--lr", "1"],
            "vcs.ref.head.revision": "0f4c0de",
            "rl.worker.packages": ["torch==2.9.1"],
        },
        time_ns=7,
    )
    (said,) = decoded(start).announcements
    assert said.status is None
    assert said.provenance == Provenance(
        role="trainer",
        index=1,
        command=("train.py", "--lr", "1"),
        commit="0f4c0de",
        packages=("torch==2.9.1",),
        time_ns=7,
    )


def test_a_sample_within_a_span_names_its_trace_unless_it_has_one_of_its_own() -> None:
    sample = event("rl.rollout.sample", {}, {"prompt": "p"}, time_ns=7)
    sample.trace_id = bytes.fromhex("ab" * 16)
    own = event("rl.rollout.sample", {}, {"trace_id": "mine"}, time_ns=8)
    own.trace_id = sample.trace_id
    found = [dict(one.fields) for one in decoded(sample, own).samples]
    assert found == [{"prompt": "p", "trace_id": "ab" * 16}, {"trace_id": "mine"}]


def test_a_stack_is_a_sample_of_its_table_whatever_table_it_names() -> None:
    fields: Attributes = {"phase": "train", "pid": 42, "stack": "a.py:1 in f"}
    named: Attributes = {"rl.loop.iteration": 7, "rl.sample.table": "answers"}
    (stack,) = decoded(event("rl.worker.stack", named, fields, time_ns=7)).samples
    assert (stack.table, stack.step, stack.time_ns, stack.worker) == ("stacks", 7, 7, TRAINER)
    assert stack.fields == fields


def test_lines_of_a_console_are_a_sample_of_its_table() -> None:
    (lines,) = decoded(event("rl.worker.console", {}, "a\nb", time_ns=7)).samples
    assert lines.is_console
    assert (lines.worker, lines.step, lines.time_ns) == (TRAINER, None, 7)
    assert lines.fields == {"log.iostream": "stdout", "text": "a\nb"}
