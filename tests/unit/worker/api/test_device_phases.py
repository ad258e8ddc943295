"""Steps and phases whose work a device does later than the program."""

import sys
import threading
from itertools import pairwise
from threading import get_ident
from time import monotonic_ns, sleep
from types import ModuleType

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import otel_rl
from otel_rl.worker import session, tensors
from otel_rl.worker.drops import DropReason
from otel_rl.worker.phases import flows
from tests.gpu.stream import Cuda
from tests.support.otlp_sink import Sink
from tests.unit.worker.api.test_phases import arrived, iteration_s, seconds, spans

MS = 1e-3
NEAR = 2e-4  # clocks are taken to drift by half of it, and a step is followed by another


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    monkeypatch.setattr(flows.current(), "clock", None)  # of another test's device
    return Cuda(monkeypatch)


def train(cuda: Cuda, number: int, forward_s: float = 20, backward_s: float = 40) -> None:
    """Queues what takes much longer (seconds, so that the program's own time is nothing)."""
    with otel_rl.step(number):
        with otel_rl.phase("forward"):
            cuda.launch(forward_s / MS)
        with otel_rl.phase("backward"):
            cuda.launch(backward_s / MS)
        with otel_rl.phase("log"):
            cuda.run()  # reads the loss


def test_a_phase_lasts_as_long_as_the_device_works_on_it(cuda: Cuda, started: Sink) -> None:
    train(cuda, 1)
    found = seconds(started, 1)
    assert found["forward"] == pytest.approx(20, rel=NEAR)
    assert found["backward"] == pytest.approx(40, rel=NEAR)
    assert found["log"] < 10


def test_the_phases_still_add_up_to_the_step(cuda: Cuda, started: Sink) -> None:
    train(cuda, 1)
    assert sum(seconds(started, 1).values()) == pytest.approx(iteration_s(started, 1), abs=1e-8)


def test_a_nested_phase_is_not_in_the_outer_one(cuda: Cuda, started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("train"):
        cuda.launch(3 / MS)
        with otel_rl.phase("optimizer"):
            cuda.launch(10 / MS)
        cuda.launch(4 / MS)
    cuda.run()
    found = seconds(started, 1)
    assert found["train"] == pytest.approx(7, rel=NEAR)
    assert found["optimizer"] == pytest.approx(10, rel=NEAR)


def test_a_part_is_in_its_whole_on_a_device_too(cuda: Cuda, started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("weight_push"):
        cuda.launch(3 / MS)
    cuda.run()
    found = seconds(started, 1)
    assert found["weight_sync"] == found["weight_push"] == pytest.approx(3, rel=NEAR)


def test_work_that_is_left_to_the_device_is_in_the_step_that_queued_it(
    cuda: Cuda, started: Sink
) -> None:
    for number in (1, 2):
        with otel_rl.step(number), otel_rl.phase("train"):
            cuda.launch(10 * number / MS)
    cuda.run()
    assert seconds(started, 1)["train"] == pytest.approx(10, rel=NEAR)
    assert seconds(started, 2)["train"] == pytest.approx(20, rel=NEAR)


def test_a_phase_without_the_device_lasts_as_long_as_the_program_is_in_it(
    cuda: Cuda, started: Sink
) -> None:
    with otel_rl.step(1):
        with otel_rl.phase("reward"):
            begun_ns = monotonic_ns()
            sleep(0.05)
            cuda.idle(50)
            least_s = (monotonic_ns() - begun_ns) / 1e9
        with otel_rl.phase("train"):
            cuda.launch(20 / MS)
    cuda.run()
    found = seconds(started, 1)
    assert found["reward"] >= least_s
    assert found["train"] == pytest.approx(20, rel=0.05)


def test_spans_have_the_times_of_the_device(cuda: Cuda, started: Sink) -> None:
    train(cuda, 1)
    found = spans(started)
    lasted_s = {name: _lasted_s(span) for name, span in found.items()}
    assert lasted_s["backward"] == pytest.approx(seconds(started, 1)["backward"], abs=1e-6)
    assert lasted_s["rl.loop"] == pytest.approx(iteration_s(started, 1), abs=1e-6)
    in_order = sorted(
        (found[name] for name in ("forward", "backward", "log")),
        key=lambda span: span.start_time_unix_nano,
    )
    for earlier, later in pairwise(in_order):
        assert earlier.end_time_unix_nano <= later.start_time_unix_nano
    assert found["rl.loop"].start_time_unix_nano <= in_order[0].start_time_unix_nano
    assert in_order[-1].end_time_unix_nano <= found["rl.loop"].end_time_unix_nano


def _lasted_s(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_what_the_device_has_not_reached_is_reported_later(cuda: Cuda, started: Sink) -> None:
    with otel_rl.step(1), otel_rl.phase("train"):
        cuda.launch(20 / MS)
    assert not otel_rl.flush(timeout_s=0.5)
    assert not [m for m in started.measurements("rl.phase.duration") if m.step == 1]
    cuda.run()
    assert seconds(started, 1)["train"] == pytest.approx(20, rel=0.05)
    assert spans(started).keys() == {"rl.loop", "rl.train"}


def test_a_hang_is_in_the_phase_that_the_device_does_not_end(cuda: Cuda, started: Sink) -> None:
    train(cuda, 1)
    arrived(started)
    with otel_rl.step(2):
        with otel_rl.phase("train"):
            cuda.launch(20 / MS)
        with otel_rl.phase("log"):  # waits for it
            (hanging,) = flows.views()
            cuda.run()
            (after,) = flows.views()
    assert (hanging.phase, hanging.step) == ("train", 2)
    assert after.phase == "log"


def test_a_step_within_a_cuda_graph_s_capture_has_the_program_s_times(
    cuda: Cuda, started: Sink
) -> None:
    cuda.is_capturing = True
    with otel_rl.step(1), otel_rl.phase("train"):
        cuda.launch(10 / MS)
    cuda.is_capturing = False
    assert seconds(started, 1)["train"] < 5
    assert spans(started).keys() == {"rl.loop", "rl.train"}


class Exchange:
    """The driver's function, by which a thread tells that it asks for nothing of a capture."""

    def __init__(self, cuda: Cuda) -> None:
        self.told: set[int] = set()
        self.too_late: set[int] = set()
        self._cuda = cuda

    def __call__(self, _mode: object) -> int:
        self.told.add(get_ident())
        self.too_late.update(self._cuda.queried_by & {get_ident()})
        return 0


@pytest.fixture
def exchange(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    made = Exchange(cuda)
    monkeypatch.setattr(tensors, "_exchange_mode", lambda: made)
    return made


# ``exchange`` is there before the threads of ``started``.
def test_threads_that_query_the_device_leave_captures_of_others_alone(
    cuda: Cuda, exchange: Exchange, started: Sink
) -> None:
    train(cuda, 1)
    assert seconds(started, 1)["backward"] > 5
    assert spans(started)
    assert cuda.queried_by
    assert cuda.queried_by <= exchange.told
    assert not exchange.too_late


def test_a_device_that_fails_is_told_once_and_leaves_the_program_s_times(
    cuda: Cuda, started: Sink
) -> None:
    before = session.GUARD.drops.counts().get(DropReason.INTERNAL, 0)
    with otel_rl.step(1), otel_rl.phase("train"):
        cuda.launch(10 / MS)
    cuda.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert seconds(started, 1)["train"] < 5
    with otel_rl.step(2), otel_rl.phase("train"):
        pass
    assert seconds(started, 2)["train"] < 5
    assert session.GUARD.drops.counts()[DropReason.INTERNAL] == before + 1


def test_a_step_beside_an_import_of_torch_is_measured(
    started: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ModuleType("torch")
    torch.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]  # which has nothing yet
    monkeypatch.setitem(sys.modules, "torch", torch)
    before = session.GUARD.drops.counts()
    with otel_rl.step(1), otel_rl.phase("train"):
        pass
    assert seconds(started, 1).keys() == {"train", "unaccounted"}
    assert session.GUARD.drops.counts() == before


def test_threads_have_streams_of_their_own(cuda: Cuda, started: Sink) -> None:
    def beside() -> None:
        with otel_rl.step(2), otel_rl.phase("evaluate"):
            pass

    with otel_rl.step(1):
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        with otel_rl.phase("train"):
            cuda.launch(10 / MS)
    cuda.run()
    assert seconds(started, 1)["train"] == pytest.approx(10, rel=NEAR)
    assert seconds(started, 2)["evaluate"] < 5


def test_the_device_s_clock_can_be_left_alone(
    cuda: Cuda, sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_DEVICE_CLOCK", "off")
    otel_rl.init(experiment="exp", role="trainer", index=0, endpoint=sink.url, export_interval_s=60)
    try:
        train(cuda, 1)
        assert seconds(sink, 1)["backward"] < 5
    finally:
        otel_rl.finish(timeout_s=60)


def test_a_phase_that_outlives_its_step_takes_nothing_of_it(cuda: Cuda, started: Sink) -> None:
    step = otel_rl.step(1)
    phase = otel_rl.phase("train")
    step.__enter__()
    phase.__enter__()
    cuda.launch(2 / MS)
    step.__exit__(None, None, None)
    cuda.launch(30 / MS)
    phase.__exit__(None, None, None)
    cuda.run()
    assert iteration_s(started, 1) == pytest.approx(2, rel=0.05)
    assert seconds(started, 1)["train"] == pytest.approx(2, rel=0.05)


def test_a_stream_that_is_ahead_leaves_no_negative_times(cuda: Cuda, started: Sink) -> None:
    with otel_rl.step(1):
        with otel_rl.phase("train"):
            cuda.launch(20 / MS)
        cuda.is_beside = True  # the program goes on in another stream
        with otel_rl.phase("copy"):
            pass
        cuda.is_beside = False
        with otel_rl.phase("evaluate"):
            cuda.launch(10 / MS)
        cuda.is_beside = True
    cuda.run()
    found = seconds(started, 1)
    assert min(found.values()) >= 0
    assert found["train"] == pytest.approx(20, rel=NEAR)
    assert found["evaluate"] == pytest.approx(10, rel=NEAR)


def test_a_device_that_fails_later_leaves_no_negative_times(cuda: Cuda, started: Sink) -> None:
    with otel_rl.step(1):
        with otel_rl.phase("train"):
            cuda.launch(20 / MS)
        cuda.run()
        flows.views()
        cuda.failure = RuntimeError("CUDA error")
        with otel_rl.phase("log"):
            pass
    assert min(seconds(started, 1).values()) >= 0


def test_work_between_steps_is_in_no_phase(cuda: Cuda, started: Sink) -> None:
    cuda.launch(3 / MS)
    with otel_rl.step(1):
        with otel_rl.phase("train"):
            (seen,) = flows.views()
        cuda.run()
    assert seen.phase == "train"


def test_a_step_on_two_devices_has_the_program_s_times_and_the_next_the_device_s(
    cuda: Cuda, started: Sink
) -> None:
    before = session.GUARD.drops.counts().get(DropReason.INTERNAL, 0)
    train(cuda, 1)
    with otel_rl.step(2):
        cuda.number = 1
        with otel_rl.phase("forward"):
            cuda.launch(10 / MS)
    train(cuda, 3)
    assert seconds(started, 1)["forward"] == pytest.approx(20, rel=NEAR)
    assert seconds(started, 2)["forward"] < 5
    assert seconds(started, 3)["backward"] == pytest.approx(40, rel=NEAR)
    assert session.GUARD.drops.counts().get(DropReason.INTERNAL, 0) == before
