"""Which steps' spans are kept, over processes that do not ask each other."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

import otel_rl
from otel_rl.semconv.spec import BLOCK_STEPS
from otel_rl.worker import served_policy
from otel_rl.worker.api import lineage
from otel_rl.worker.settings import read_settings
from otel_rl.worker.tracing import CountedSpans, StepSampler, made_tracer_provider
from tests.support.otlp_sink import Sink

steps = st.integers(0, 10**9)
shares = st.floats(0, 1)


def sampler(share: float, run_id: str = "one") -> StepSampler:
    made = StepSampler()
    made.run_id = run_id
    made.keep(share)
    return made


def decision(of: StepSampler, **attributes: int) -> SamplingResult:
    named = {f"rl.{name.replace('_', '.')}": value for name, value in attributes.items()}
    return of.should_sample(Context(), 1, "x", attributes=named)


def keeps(of: StepSampler, **attributes: int) -> bool:
    return decision(of, **attributes).decision is Decision.RECORD_AND_SAMPLE


@given(steps, shares)
def test_every_process_comes_to_the_same_answer(step: int, share: float) -> None:
    assert len({keeps(sampler(share), loop_iteration=step) for _ in range(3)}) == 1


@given(steps, shares, shares)
def test_what_is_kept_of_few_steps_is_kept_of_more(step: int, share: float, other: float) -> None:
    few, many = sorted((share, other))
    assert keeps(sampler(few), loop_iteration=step) <= keeps(sampler(many), loop_iteration=step)


@given(steps, shares, st.integers(1, BLOCK_STEPS))
def test_samples_that_a_kept_step_may_use_are_kept(step: int, share: float, age: int) -> None:
    one = sampler(share)
    if keeps(one, loop_iteration=step):
        assert keeps(one, policy_version=step - age)


def test_the_share_of_the_steps_is_kept() -> None:
    one = sampler(0.1)
    kept = sum(keeps(one, loop_iteration=step) for step in range(0, 80_000, BLOCK_STEPS))
    assert kept == pytest.approx(1_000, rel=0.15)


@pytest.mark.parametrize(("share", "kept"), [(0, {False}), (1, {True})])
def test_nothing_and_all_are_exactly_that(share: float, kept: set[bool]) -> None:
    assert {keeps(sampler(share), loop_iteration=step) for step in range(10_000)} == kept


def test_runs_keep_different_steps() -> None:
    kept = [
        [keeps(sampler(0.5, run), loop_iteration=step) for step in range(800)]
        for run in ("one", "two")
    ]
    assert kept[0] != kept[1]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_span_within_another_is_kept_if_that_one_is(*, is_kept: bool) -> None:
    state = TraceState([("ot", "rv:00000000000001")])
    parent = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(is_kept), trace_state=state)
    context = set_span_in_context(NonRecordingSpan(parent))
    result = sampler(0 if is_kept else 1).should_sample(
        context, 1, "x", attributes={"rl.loop.iteration": 3}
    )
    assert (result.decision is Decision.RECORD_AND_SAMPLE) is is_kept
    assert result.trace_state == state


def test_what_belongs_to_no_step_is_kept() -> None:
    served_policy.forget()  # of another test
    assert keeps(sampler(0))


@given(steps, shares)
def test_the_state_says_what_decided_as_opentelemetry_has_it(step: int, share: float) -> None:
    result = decision(sampler(share), loop_iteration=step)
    if result.decision is Decision.RECORD_AND_SAMPLE:
        assert result.trace_state is not None
        state = re.fullmatch("rv:([0-9a-f]{14});th:([0-9a-f]{1,14})", result.trace_state["ot"])
        assert state is not None
        assert int(state[1], 16) >= int(state[2].ljust(14, "0"), 16)


@given(steps)
def test_all_traces_of_a_step_have_one_state(step: int) -> None:
    one = sampler(1)
    first = step - step % BLOCK_STEPS
    state = decision(one, loop_iteration=step).trace_state
    assert state == decision(one, loop_iteration=first).trace_state
    # All steps that such a sample may be used by are of this block.
    assert state == decision(one, policy_version=first - 1).trace_state


def span_names(sink: Sink) -> set[str]:
    assert otel_rl.flush(timeout_s=60)
    return {
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


@pytest.mark.usefixtures("clean_environment")
def test_a_worker_keeps_no_spans_of_steps_that_are_left_out(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_TRACE_STEPS", "0")
    otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=60)
    with otel_rl.step(3), otel_rl.phase("train"):
        pass
    with otel_rl.phase("weight_sync"):
        lineage.link_weights(None, policy_version=3)
    with otel_rl.phase("generate"):
        pass
    # The process knew of no version yet when it took the first weights.
    assert span_names(sink) == {"rl.sync"}
    otel_rl.finish(timeout_s=60)


@pytest.mark.usefixtures("clean_environment")
def test_opentelemetrys_own_sampler_decides_where_it_is_named_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {"OTEL_TRACES_SAMPLER": "always_off"}
    assert read_settings(environ).trace_steps is None
    assert read_settings({**environ, "OTEL_RL_TRACE_STEPS": "0.5"}).trace_steps == 0.5
    assert read_settings({}).trace_steps == 1.0
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    spans = CountedSpans(Resource({}), 1)
    tracer = made_tracer_provider(Resource({}), spans, None).get_tracer("x")
    assert not tracer.start_span("x").is_recording()
