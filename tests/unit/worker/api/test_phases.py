"""step() and phase() as training code uses them, and what arrives."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from time import monotonic_ns, sleep

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_rl
from otel_rl.semconv.names import RlPhaseClassValues
from otel_rl.worker import session
from otel_rl.worker.api.phases import begin_phase_span, end_span
from otel_rl.worker.drops import DropReason
from otel_rl.worker.phases import WHOLES, flows
from otel_rl.worker.phases.timeline import Frame
from tests.support.otlp_sink import Measurement, Sink, pairs
from tests.support.waiting import collect_garbage

WORK_S = 0.002


def work() -> int:
    """Takes some time. Returns a lower bound of it, in ns."""
    begun_ns = monotonic_ns()
    sleep(WORK_S)
    return monotonic_ns() - begun_ns


def arrived(sink: Sink, name: str = "rl.phase.duration") -> list[Measurement]:
    assert otel_rl.flush(timeout_s=60)
    return sink.measurements(name)


def seconds(sink: Sink, step: int | None) -> dict[object, float]:
    """The phases reported at a step, each once."""
    found = [m for m in arrived(sink) if m.step == step]
    names = [m.attributes["rl.phase"] for m in found]
    assert len(names) == len(set(names)), names
    return {m.attributes["rl.phase"]: m.value for m in found}


def iteration_s(sink: Sink, step: int) -> float:
    (found,) = [m.value for m in arrived(sink, "rl.iteration.duration") if m.step == step]
    return found


def spans(sink: Sink) -> dict[str, Span]:
    """The spans by name, each once."""
    assert otel_rl.flush(timeout_s=60)
    found = [
        span
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len({span.name for span in found}) == len(found)
    return {span.name: span for span in found}


def dropped(reason: DropReason) -> int:
    return session.GUARD.drops.counts().get(reason, 0)


# What is measured


def test_the_phases_of_a_step_and_what_is_in_none_add_up_to_it(started: Sink) -> None:
    with otel_rl.step(7):
        work()
        with otel_rl.phase("collector_wait"):
            work()
        with otel_rl.phase("train"):
            work()
    found = seconds(started, 7)
    assert set(found) == {"collector_wait", "train", "unaccounted"}
    assert sum(found.values()) == pytest.approx(iteration_s(started, 7), abs=1e-9)
    assert min(found.values()) >= WORK_S * 0.9


def test_the_time_of_a_phase_within_a_phase_is_its_alone(started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("collector_wait"):
        work()
        with otel_rl.phase("logger"):
            inner_ns = work()
    found = seconds(started, 1)
    assert found["logger"] >= inner_ns / 1e9
    assert found["collector_wait"] <= iteration_s(started, 1) - inner_ns / 1e9
    assert found["collector_wait"] >= WORK_S * 0.9


def test_a_phase_that_is_entered_often_is_reported_once_with_all_its_time(started: Sink) -> None:
    with otel_rl.step(1):
        worked_ns = 0
        for _ in range(5):
            with otel_rl.phase("env_step"):
                worked_ns += work()
    assert seconds(started, 1)["env_step"] >= worked_ns / 1e9


def test_what_an_earlier_step_had_is_zero_where_it_does_not_happen(started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("checkpoint"):
        work()
    with otel_rl.step(2):
        pass
    assert seconds(started, 2)["checkpoint"] == 0.0


def test_a_single_device_reports_what_only_several_have_as_zero(started: Sink) -> None:
    with otel_rl.step(1, phases=("rank_barrier", "param_sync")), otel_rl.phase("train"):
        work()
    found = seconds(started, 1)
    assert (found["rank_barrier"], found["param_sync"]) == (0.0, 0.0)


def test_one_phase_to_be_reported_may_be_named_alone(started: Sink) -> None:
    with otel_rl.step(1, phases="rank_barrier"):
        pass
    assert set(seconds(started, 1)) == {"rank_barrier", "unaccounted"}


def test_a_part_is_reported_beside_its_whole_and_is_in_it(started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("weight_sync"):
        work()
        with otel_rl.phase("weight_push"):
            work()
    found = seconds(started, 1)
    assert WORK_S * 0.9 <= found["weight_push"] <= found["weight_sync"] - WORK_S * 0.9
    parts_left_out = sum(found.values()) - found["weight_push"]
    assert parts_left_out == pytest.approx(iteration_s(started, 1), abs=1e-9)


def test_a_part_on_its_own_is_its_whole_too(started: Sink) -> None:
    with otel_rl.phase("weight_pull"):
        work()
    found = seconds(started, None)
    assert found["weight_pull"] == found["weight_sync"]


def test_outside_of_a_step_a_part_is_in_its_whole_too(started: Sink) -> None:
    with otel_rl.phase("weight_sync"):
        work()
        with otel_rl.phase("weight_pull"):
            work()
    found = seconds(started, None)
    assert found["weight_sync"] >= found["weight_pull"] + WORK_S * 0.9


def test_outside_of_a_step_a_phase_is_reported_each_time_and_at_no_step(started: Sink) -> None:
    for _ in range(3):
        with otel_rl.phase("generate"):
            pass
    assert [(m.step, m.attributes) for m in arrived(started)] == [
        (None, {"rl.phase": "generate"})
    ] * 3


def test_a_phase_of_one_s_own_may_say_what_kind_of_time_it_is(started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("tool_call", phase_class="io"):
        pass
    with otel_rl.phase("tool_call", phase_class="io"):
        pass
    mine = [m for m in arrived(started) if m.attributes["rl.phase"] == "tool_call"]
    assert [m.attributes["rl.phase_class"] for m in mine] == ["io", "io"]


def test_one_object_may_be_entered_within_itself(started: Sink) -> None:
    train = otel_rl.phase("train")
    with otel_rl.step(1), train, train:
        work()
    assert seconds(started, 1)["train"] >= WORK_S * 0.9


def test_a_step_within_a_step_is_a_part_of_it(
    started: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    with otel_rl.step(1):
        with otel_rl.step(2), otel_rl.phase("train"):
            work()
        with otel_rl.phase("param_sync"):
            work()
    assert seconds(started, 2) == {}
    assert set(seconds(started, 1)) == {"train", "param_sync", "unaccounted"}
    assert "A step was opened within a step" in caplog.text


# Flows of control


def in_thread(target: Callable[[], None]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def test_a_phase_in_another_thread_is_beside_the_step(started: Sink) -> None:
    def prefetch() -> None:
        with otel_rl.phase("batch_create"):
            work()

    with otel_rl.step(1), otel_rl.phase("train"):
        in_thread(prefetch)
    assert set(seconds(started, 1)) == {"train", "unaccounted"}
    assert set(seconds(started, None)) == {"batch_create"}
    assert seconds(started, 1)["train"] >= WORK_S * 0.9


def test_threads_with_steps_of_their_own_do_not_mix(started: Sink) -> None:
    def trained(number: int, phase: str) -> Callable[[], None]:
        def train() -> None:
            for _ in range(50):
                with otel_rl.phase(phase):
                    pass

        def run() -> None:
            with otel_rl.step(number):
                train()

        return run

    threads = [
        threading.Thread(target=trained(number, name)) for number, name in ((1, "a"), (2, "b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seconds(started, 1)) == {"a", "unaccounted"}
    assert set(seconds(started, 2)) == {"b", "unaccounted"}


def test_a_task_s_phases_are_those_of_the_step_that_it_opened(started: Sink) -> None:
    async def train() -> None:
        async with otel_rl.step(3), otel_rl.phase("generate"):
            await asyncio.sleep(WORK_S)

    asyncio.run(train())
    found = seconds(started, 3)
    assert sum(found.values()) == pytest.approx(iteration_s(started, 3), abs=1e-9)
    assert found["generate"] >= WORK_S * 0.9


def test_phases_of_tasks_that_run_beside_a_step_take_no_time_out_of_it(started: Sink) -> None:
    async def roll_out() -> None:
        async with otel_rl.phase("generate"):
            await asyncio.sleep(WORK_S)

    async def train() -> None:
        async with otel_rl.step(4), otel_rl.phase("collector_wait"):
            await asyncio.gather(roll_out(), roll_out(), roll_out())

    asyncio.run(train())
    assert set(seconds(started, 4)) == {"collector_wait", "unaccounted"}
    assert seconds(started, 4)["collector_wait"] >= WORK_S * 0.9
    assert sum(seconds(started, 4).values()) == pytest.approx(iteration_s(started, 4), abs=1e-9)
    beside = [m for m in arrived(started) if m.step is None]
    assert [m.attributes["rl.phase"] for m in beside] == ["generate"] * 3


def test_concurrent_tasks_each_have_their_own_time(started: Sink) -> None:
    async def one(number: int) -> None:
        async with otel_rl.step(number):
            for _ in range(3):
                async with otel_rl.phase("env_step"):
                    begun_ns = monotonic_ns()
                    await asyncio.sleep(WORK_S)
                    own_ns[number] += monotonic_ns() - begun_ns

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(5)))

    own_ns = [0] * 5
    asyncio.run(run())
    for number in range(5):
        found = seconds(started, number)
        assert sum(found.values()) == pytest.approx(iteration_s(started, number), abs=1e-9)
        assert found["env_step"] >= own_ns[number] / 1e9 - 1e-9


def test_a_phase_that_threads_share_is_measured_though_one_of_them_is_refused(
    started: Sink,
) -> None:
    shared = otel_rl.phase("reward", span=False)
    refused, left = threading.Event(), threading.Event()

    def too_deep() -> None:
        with ExitStack() as opened:
            for _ in range(64):
                opened.enter_context(otel_rl.phase("train", span=False))
            with shared:
                refused.set()
                assert left.wait(60)

    thread = threading.Thread(target=too_deep)
    with shared:
        thread.start()
        assert refused.wait(60)
    left.set()
    thread.join()
    assert flows.views() == []
    assert [m.attributes["rl.phase"] for m in arrived(started)].count("reward") == 1


def test_a_step_that_is_refused_in_one_task_is_measured_in_another(started: Sink) -> None:
    shared = otel_rl.step(3)

    async def within(refused: asyncio.Event, left: asyncio.Event) -> None:
        async with otel_rl.step(2), shared:
            refused.set()
            await left.wait()

    async def run() -> None:
        refused, left = asyncio.Event(), asyncio.Event()
        async with shared:
            other = asyncio.create_task(within(refused, left))
            await refused.wait()
        left.set()
        await other

    asyncio.run(run())
    assert iteration_s(started, 3) > 0
    assert iteration_s(started, 2) > 0


# Tasks that are gone


def ages(sink: Sink) -> set[object]:
    """The phases that are seen to be open."""
    before = len(sink.metrics)
    assert otel_rl.flush(timeout_s=60)
    return {
        pairs(point.attributes)["rl.phase"]
        for request in sink.metrics[before:]
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "rl.worker.phase.age"
        for point in metric.gauge.data_points
    }


def test_a_phase_that_a_task_leaves_open_is_no_hang(started: Sink) -> None:
    before = dropped(DropReason.UNCLOSED_PHASE)

    async def leaves() -> None:
        otel_rl.phase("generate").__enter__()

    async def run() -> None:
        await asyncio.create_task(leaves())
        assert ages(started) == set()

    asyncio.run(run())
    assert dropped(DropReason.UNCLOSED_PHASE) == before + 1


def test_a_phase_that_a_task_is_in_is_seen(started: Sink) -> None:
    async def stays(entered: asyncio.Event) -> None:
        async with otel_rl.phase("generate"):
            entered.set()
            await asyncio.Event().wait()

    async def run() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(stays(entered))
        await entered.wait()
        assert ages(started) == {"generate"}
        task.cancel()

    asyncio.run(run())
    assert ages(started) == set()


def test_a_phase_of_a_task_whose_loop_is_closed_is_no_hang(started: Sink) -> None:
    async def stays(entered: asyncio.Event) -> None:
        async with otel_rl.phase("generate"):
            entered.set()
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    entered = asyncio.Event()
    task = loop.create_task(stays(entered))
    loop.run_until_complete(entered.wait())
    assert ages(started) == {"generate"}
    loop.close()
    assert ages(started) == set()
    assert not task.done()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_phase_of_a_task_that_is_destroyed_is_no_hang(started: Sink) -> None:
    async def stays(entered: asyncio.Event) -> None:
        async with otel_rl.phase("generate"):
            entered.set()
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    entered = asyncio.Event()
    task = loop.create_task(stays(entered))
    loop.run_until_complete(entered.wait())
    del task, entered
    collect_garbage()
    assert ages(started) == set()
    loop.close()


def test_a_phase_that_another_thread_has_closed_is_not_seen(started: Sink) -> None:
    def batches() -> Generator[int, None, None]:
        with otel_rl.phase("replay_batch_wait"):
            yield 1

    generator = batches()
    next(generator)
    assert ages(started) == {"replay_batch_wait"}
    in_thread(generator.close)
    assert ages(started) == set()
    with otel_rl.phase("train"):  # where the thread itself lets go of it
        pass


# Generators


def test_a_generator_that_is_suspended_within_a_phase_breaks_nothing(started: Sink) -> None:
    def batches() -> Generator[int, None, None]:
        with otel_rl.phase("replay_batch_wait"):
            yield 1

    with otel_rl.step(1):
        generator = batches()
        next(generator)
        with otel_rl.phase("train"):
            work()
            generator.close()
            work()
        assert trace.get_current_span().is_recording()
    assert not trace.get_current_span().is_recording()
    found = seconds(started, 1)
    assert sum(found.values()) == pytest.approx(iteration_s(started, 1), abs=1e-9)
    assert found["train"] >= 2 * WORK_S * 0.9


def test_a_phase_that_outlives_its_step_gives_it_the_time_until_then(started: Sink) -> None:
    phase = otel_rl.phase("generate")
    with otel_rl.step(1):
        phase.__enter__()
        work()
    with otel_rl.step(2):
        work()
    phase.__exit__(None, None, None)
    assert seconds(started, 1)["generate"] >= WORK_S * 0.9
    assert sum(seconds(started, 1).values()) == pytest.approx(iteration_s(started, 1), abs=1e-9)
    assert seconds(started, 2)["generate"] == 0.0


def test_a_generator_that_another_thread_ends_leaves_no_phase_open(started: Sink) -> None:
    def batches() -> Generator[int, None, None]:
        with otel_rl.phase("replay_batch_wait"):
            yield 1

    generator = batches()
    next(generator)
    in_thread(generator.close)
    assert set(seconds(started, None)) == {"replay_batch_wait"}
    with otel_rl.step(1):
        work()
    assert set(seconds(started, 1)) == {"unaccounted"}
    assert not trace.get_current_span().is_recording()


# Decorators


def test_a_decorated_function_is_a_phase_and_stays_what_it_was(started: Sink) -> None:
    @otel_rl.phase("train")
    def train(batch: int) -> int:
        """Trains."""
        work()
        return batch + 1

    with otel_rl.step(1):
        assert train(1) == 2
    assert (train.__name__, train.__doc__) == ("train", "Trains.")
    assert seconds(started, 1)["train"] >= WORK_S * 0.9


def test_a_decorated_async_function_is_a_phase_until_it_is_done(started: Sink) -> None:
    @otel_rl.phase("generate")
    async def generate() -> int:
        await asyncio.sleep(WORK_S)
        return 3

    async def run() -> int:
        async with otel_rl.step(1):
            return await generate()

    assert asyncio.run(run()) == 3
    assert seconds(started, 1)["generate"] >= WORK_S * 0.9


def test_a_decorated_generator_stays_what_it_was_and_is_said_not_to_be_measured(
    started: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    @otel_rl.phase("batch_create")
    def batches() -> Iterator[int]:
        yield from range(3)

    with otel_rl.step(1):
        assert [*batches()] == [0, 1, 2]
    assert "batch_create" not in seconds(started, 1)
    assert "The phase 'batch_create' decorates a generator" in caplog.text


# Spans


def test_phases_are_spans_within_that_of_their_step_by_the_names_of_the_proposal(
    started: Sink,
) -> None:
    with otel_rl.step(5), otel_rl.phase("train"), otel_rl.phase("mine"):
        work()
    found = spans(started)
    loop, train, mine = found["rl.loop"], found["rl.train"], found["mine"]
    assert (loop.parent_span_id, train.parent_span_id) == (b"", loop.span_id)
    assert mine.parent_span_id == train.span_id
    assert pairs(loop.attributes) == {"rl.loop.iteration": 5}
    assert pairs(train.attributes) == {
        "rl.phase": "train",
        "rl.phase_class": "compute",
        "rl.loop.iteration": 5,
    }


@pytest.mark.parametrize("given", [None, RlPhaseClassValues.WAIT])
def test_a_span_processor_of_the_program_s_sees_plain_text(
    started: Sink, given: str | None
) -> None:
    provider = TracerProvider()
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    flow = flows.current()
    frame = flow.open_phase(opener := object(), "train")
    assert isinstance(frame, Frame)
    with_class = otel_rl.phase("train", phase_class=given)._phase_class
    begin_phase_span(provider.get_tracer("t"), flow, frame, with_class)
    flow.close(opener)
    end_span(flow, frame, None)
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert {type(value) for value in span.attributes.values()} == {str}
    assert {type(name) for name in span.attributes} == {str}


def test_names_of_phases_and_their_wholes_are_plain_text() -> None:
    assert {type(name) for pair in WHOLES.items() for name in pair} == {str}


def test_spans_last_exactly_as_long_as_is_measured(started: Sink) -> None:
    with otel_rl.step(5), otel_rl.phase("train"):
        work()
    found, measured = spans(started), seconds(started, 5)
    for name, measured_s in (("rl.loop", iteration_s(started, 5)), ("rl.train", measured["train"])):
        lasted_ns = found[name].end_time_unix_nano - found[name].start_time_unix_nano
        assert lasted_ns == round(measured_s * 1e9)


def test_a_step_is_a_trace_of_its_own_linked_to_the_span_around_it(started: Sink) -> None:
    with trace.get_tracer("mine").start_as_current_span("run"), otel_rl.step(1):
        pass
    found = spans(started)
    assert found["rl.loop"].trace_id != found["run"].trace_id
    assert [link.span_id for link in found["rl.loop"].links] == [found["run"].span_id]


def test_what_is_measured_within_a_phase_knows_its_span(started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("train"):
        otel_rl.log({"loss": 1.0}, step=1)
    (loss,) = arrived(started, "loss")
    assert loss.span_id == spans(started)["rl.train"].span_id.hex()


def test_an_exception_passes_is_recorded_on_the_spans_and_its_time_is_measured(
    started: Sink,
) -> None:
    def diverge() -> None:
        with otel_rl.step(1), otel_rl.phase("train"):
            work()
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        diverge()
    found = spans(started)
    for name in ("rl.train", "rl.loop"):
        assert found[name].status.code == Status.StatusCode.STATUS_CODE_ERROR
        assert pairs(found[name].events[0].attributes)["exception.message"] == "diverged"
    assert seconds(started, 1)["train"] >= WORK_S * 0.9


def test_a_phase_without_a_span_is_measured_all_the_same(started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("env_step", span=False):
        pass
    assert set(spans(started)) == {"rl.loop"}
    assert "env_step" in seconds(started, 1)


@pytest.fixture
def without_traces(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sink]:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    otel_rl.init(experiment="e", role="r", endpoint=sink.url, export_interval_s=60)
    yield sink
    otel_rl.finish(timeout_s=60)


def test_where_no_spans_are_wanted_none_are_made(without_traces: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("train"):
        assert not trace.get_current_span().get_span_context().is_valid
    assert "train" in seconds(without_traces, 1)


# What goes wrong


@pytest.mark.parametrize("name", ["", None, 7, "x" * 256, ["train"]])
def test_a_name_that_is_none_is_counted_and_its_time_stays_where_it_was(
    started: Sink, name: object
) -> None:
    before = dropped(DropReason.BAD_NAME)
    nameless = otel_rl.phase(name)  # type: ignore[arg-type]  # bad types are the point
    with otel_rl.step(1), otel_rl.phase("train"), nameless:
        work()
    assert seconds(started, 1)["train"] >= WORK_S * 0.9
    assert dropped(DropReason.BAD_NAME) == before + 1


@pytest.mark.parametrize("number", [None, "12", 1.5, 1 << 63, object()])
def test_a_step_that_is_no_number_is_counted_and_its_phases_are_of_no_step(
    started: Sink, number: object
) -> None:
    before = dropped(DropReason.BAD_STEP)
    with otel_rl.step(number), otel_rl.phase("train"):  # type: ignore[arg-type]  # as above
        pass
    assert {m.step for m in arrived(started)} == {None}
    assert dropped(DropReason.BAD_STEP) == before + 1


@pytest.mark.parametrize("number", [3.0, True + 2])
def test_a_step_of_another_type_is_its_integer(started: Sink, number: int) -> None:
    with otel_rl.step(number):
        pass
    assert "unaccounted" in seconds(started, 3)


def test_phases_that_are_never_closed_are_counted_and_stop_growing(started: Sink) -> None:
    before = dropped(DropReason.UNCLOSED_PHASE)
    with ExitStack() as opened:
        for _ in range(70):
            opened.enter_context(otel_rl.phase("train", span=False))
    assert dropped(DropReason.UNCLOSED_PHASE) == before + 6
    assert len(arrived(started)) == 64


def test_phases_of_nobody_are_counted(clean_environment: None) -> None:
    before = dropped(DropReason.NOT_STARTED)
    with otel_rl.step(1), otel_rl.phase("train"):
        pass
    assert dropped(DropReason.NOT_STARTED) == before + 3
    assert session.running() is None


def test_a_disabled_sdk_neither_measures_nor_counts(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    before = dropped(DropReason.NOT_STARTED)
    with otel_rl.step(1), otel_rl.phase("train"):
        pass
    assert dropped(DropReason.NOT_STARTED) == before


def test_a_phase_starts_a_worker_that_the_environment_names(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_has_ended", False)  # by the sessions of other tests
    monkeypatch.setenv("OTEL_RL_EXPERIMENT", "e")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
    with otel_rl.step(1), otel_rl.phase("train"):
        pass
    found = spans(sink)
    assert set(found) == {"rl.loop", "rl.train"}
    assert "train" in seconds(sink, 1)
    otel_rl.finish(timeout_s=60)
