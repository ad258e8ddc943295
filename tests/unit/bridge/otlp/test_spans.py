"""Spans to records of them."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_rl.records import (
    Batch,
    Decoded,
    ExperimentKey,
    Export,
    Measurements,
    Signal,
    SpanRecord,
    Worker,
)
from tests.support.doors import decode
from tests.support.otlp_requests import Attributes, key_values

TRACE, OTHER_TRACE = bytes(range(16)), bytes(range(16, 32))
ONE, TWO, THREE = b"1" * 8, b"2" * 8, b"3" * 8

RESOURCE: Attributes = {
    "rl.experiment.name": "x",
    "rl.worker.role": "trainer",
    "service.instance.id": "one",
    "host.name": "node-7",
}
TRAINER = Worker("trainer", "//one")


def decoded(*spans: Span, resource: Attributes = RESOURCE) -> Decoded:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(key_values(resource))
    resource_spans.scope_spans.add().spans.extend(spans)
    return decode(Batch(ExperimentKey("x"), Signal.TRACES, request.SerializeToString(), 99))


def test_a_span_keeps_what_a_diagnosis_needs() -> None:
    sent = Span(
        trace_id=TRACE,
        span_id=TWO,
        parent_span_id=ONE,
        name="collector_wait",
        start_time_unix_nano=10,
        end_time_unix_nano=20,
        status=Status(code=Status.STATUS_CODE_ERROR),
        links=[Span.Link(trace_id=OTHER_TRACE, span_id=THREE)],
        attributes=key_values(
            {"rl.phase": "collector_wait", "rl.phase_class": "wait", "rl.loop.iteration": 3}
        ),
    )
    found = decoded(sent)
    assert found.spans == [
        SpanRecord(
            span_id=TRACE + TWO,
            parent_id=TRACE + ONE,
            links=(OTHER_TRACE + THREE,),
            role="trainer",
            worker="//one",
            host="node-7",
            start_ns=10,
            end_ns=20,
            name="collector_wait",
            phase="collector_wait",
            phase_class="wait",
            step=3,
            failed=True,
        )
    ]
    assert found.exports == [Export(TRAINER, 0, has_work=True, host="node-7")]


def test_a_root_without_attributes_is_a_plain_span() -> None:
    (found,) = decoded(Span(trace_id=TRACE, span_id=ONE, name="x")).spans
    assert (found.parent_id, found.links, found.phase, found.step) == (None, (), "", None)
    assert found.phase_class == ""
    assert not found.failed


@pytest.mark.parametrize(
    ("name", "attributes", "phase", "phase_class"),
    [
        ("x", {"rl.phase": "collector_wait"}, "collector_wait", "wait"),
        ("x", {"rl.phase": "train", "rl.phase_class": "io"}, "train", "io"),
        ("x", {"rl.phase": "my_phase"}, "my_phase", "other"),
        ("x", {"rl.phase": "my_phase", "rl.phase_class": "wait"}, "my_phase", "wait"),
        ("rl.sample", {}, "generate", "compute"),
        ("rl.sync", {}, "weight_sync", "sync"),
        ("rl.sync", {"rl.phase": "weight_pull"}, "weight_pull", "transfer"),
    ],
)
def test_what_a_span_does_not_say_of_its_phase_the_conventions_do(
    name: str, attributes: Attributes, phase: str, phase_class: str
) -> None:
    sent = Span(trace_id=TRACE, span_id=ONE, name=name, attributes=key_values(attributes))
    (found,) = decoded(sent).spans
    assert (found.phase, found.phase_class) == (phase, phase_class)


def test_a_span_that_ends_before_it_begins_takes_no_time() -> None:
    sent = Span(trace_id=TRACE, span_id=ONE, start_time_unix_nano=20, end_time_unix_nano=10)
    (found,) = decoded(sent).spans
    assert (found.start_ns, found.end_ns) == (20, 20)


def test_a_process_that_names_no_host_has_a_clock_of_its_own() -> None:
    resource = {key: value for key, value in RESOURCE.items() if key != "host.name"}
    (found,) = decoded(Span(trace_id=TRACE, span_id=ONE), resource=resource).spans
    assert found.host == "//one"


NEMO: Attributes = {"nemo.run.id": "77", "service.name": "nemo-rl", "dl.rank": 0, "process.pid": 5}


def step_span(name: str = "rl.grpo.step", **attributes: int) -> Span:
    return Span(
        trace_id=TRACE,
        span_id=ONE,
        name=name,
        start_time_unix_nano=10,
        end_time_unix_nano=10 + 3 * 10**9,
        attributes=key_values({key.replace("_", "."): value for key, value in attributes.items()}),
    )


def test_a_step_of_another_program_is_a_step_with_a_duration() -> None:
    found = decoded(step_span(rl_iteration=7), resource=NEMO)
    (span,), (took,) = found.spans, found.points
    assert (span.name, span.role, span.step, span.phase) == ("rl.loop", "trainer", 7, "")
    assert isinstance(took, Measurements)
    assert (took.series.name, took.series.worker.role) == ("rl.iteration.duration", "trainer")
    assert (took.times_ns, took.values, took.steps) == ([10 + 3 * 10**9], [3.0], [7])


def test_a_step_without_a_number_has_no_duration() -> None:
    assert decoded(step_span(), resource=NEMO).points == []


def test_workers_of_otel_rl_are_not_translated() -> None:
    own = {**RESOURCE, "telemetry.distro.name": "otel_rl"}
    found = decoded(step_span(rl_iteration=7), resource=own)
    assert [(span.name, span.step) for span in found.spans] == [("rl.grpo.step", None)]
    assert found.points == []


def test_a_phase_of_the_sender_comes_before_another_programs() -> None:
    sent = Span(
        trace_id=TRACE,
        span_id=ONE,
        name="rl.grpo.generation",
        attributes=key_values({"rl.phase": "reward", "openinference.span.kind": "LLM"}),
    )
    (span,) = decoded(sent, resource=NEMO).spans
    assert (span.phase, span.phase_class) == ("reward", "compute")


def test_a_phase_that_is_not_in_the_registry_has_the_class_of_its_rule() -> None:
    sent = Span(trace_id=TRACE, span_id=ONE, name="rl.grpo.compute_logprobs")
    (span,) = decoded(sent, resource=NEMO).spans
    assert (span.phase, span.phase_class) == ("policy_and_reference_logprobs", "compute")


def test_a_class_without_a_phase_stays_a_class() -> None:
    sent = Span(
        trace_id=TRACE,
        span_id=ONE,
        name="rl.grpo.something_new",
        attributes=key_values({"rl.bucket": "idle"}),
    )
    (span,) = decoded(sent, resource=NEMO).spans
    assert (span.phase, span.phase_class, span.is_wait) == ("", "wait", True)


def test_ranks_of_two_groups_are_two_workers() -> None:
    same = {**NEMO, "service.instance.id": "77-rank0"}
    workers = {
        decoded(Span(trace_id=TRACE, span_id=ONE), resource={**same, "rl.worker_group": group})
        .exports[0]
        .worker
        for group in ("lm_policy", "vllm_policy")
    }
    assert {(worker.role, worker.index) for worker in workers} == {("policy", 0), ("generator", 0)}
    assert len({worker.instance for worker in workers}) == 2


@pytest.mark.parametrize(
    ("state", "is_sampled"),
    [
        ("", False),
        ("ot=th:0", False),
        ("ot=th:8", True),
        ("vendor=th:8", False),
        ("vendor=1, ot=th:c", True),
        ("ot=th:0;rv:9b8233f7e3a151", False),
        ("ot=rv:9b8233f7e3a151;th:8", True),
        ("ot=rv:9b8233f7e3a151", False),
    ],
)
def test_the_threshold_of_a_span_says_whether_others_were_dropped(
    state: str, is_sampled: bool
) -> None:
    span = Span(trace_id=TRACE, span_id=ONE, trace_state=state)
    assert bool(decoded(span).sampled) is is_sampled


def test_the_steps_that_our_workers_keep_are_whole() -> None:
    ours = {**RESOURCE, "telemetry.distro.name": "otel_rl"}
    whole = Span(trace_id=TRACE, span_id=ONE, trace_state="ot=rv:9b8233f7e3a151;th:8")
    torn = Span(trace_id=TRACE, span_id=ONE, trace_state="ot=th:8")
    assert not decoded(whole, resource=ours).sampled
    assert decoded(torn, resource=ours).sampled


def test_whom_a_worker_calls_in_a_step_that_it_keeps_is_whole_as_well() -> None:
    inherited = "ot=rv:9b8233f7e3a151;th:8"
    called = Span(trace_id=TRACE, span_id=TWO, parent_span_id=ONE, trace_state=inherited)
    assert not decoded(called).sampled


def test_a_scope_says_that_a_collector_has_chosen_its_traces() -> None:
    request = ExportTraceServiceRequest()
    scope_spans = request.resource_spans.add().scope_spans.add()
    scope_spans.scope.attributes.extend(key_values({"tailsampling.policy": "one-in-two"}))
    scope_spans.spans.add(trace_id=TRACE, span_id=ONE)
    batch = Batch(ExperimentKey("x"), Signal.TRACES, request.SerializeToString(), 99)
    (worker,) = decode(batch).sampled
    assert worker in {export.worker for export in decode(batch).exports}
