"""What a test leaves in the process is named."""

import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import Observation

import otel_rl
import otel_rl.integrations.wandb as wandb
from otel_rl.worker.phases import flows
from tests.support import leftovers
from tests.support.leftovers import State, own_instruments
from tests.support.otlp_sink import Sink, serve, sums


@contextmanager
def a_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OTEL_LEFT", "1")
    yield


@contextmanager
def a_handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR2, before)


@contextmanager
def a_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flows.GcTime, "stop", lambda _self: None)
    yield


@contextmanager
def a_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    logging.getLogger("otel_rl").setLevel(logging.ERROR)
    yield
    logging.getLogger("otel_rl").setLevel(logging.NOTSET)


@contextmanager
def a_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(leftovers, "_ENDS_WITHIN_S", 0.0)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="otel-rl-left")
    thread.start()
    yield
    end.set()
    thread.join()


@contextmanager
def a_phase(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with otel_rl.phase("train"):
        yield


@contextmanager
def no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@contextmanager
def a_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    wandb.init(mode="disabled")
    yield
    wandb.finish()


@pytest.mark.parametrize(
    ("leave", "word"),
    [
        (a_variable, "the environment variable OTEL_LEFT is '1' (was absent)"),
        (a_handler, f"the handler of signal {signal.SIGUSR2:d} is"),
        (a_function, "otel_rl.worker.phases.flows.GcTime.stop is"),
        (a_level, "the level of otel_rl's logger is 40 (was 0)"),
        (a_thread, "the thread otel-rl-left runs"),
        (a_run, "the run of W&B's drop-in is"),
        (a_phase, "flows with open phases is"),
        (no_collector, "the collector of garbage is False (was True)"),
    ],
)
def test_what_is_left_is_named(
    leave: Callable[[pytest.MonkeyPatch], AbstractContextManager[None]],
    word: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = State()
    with leave(monkeypatch):
        (left,) = before.left()
    assert left.startswith(word)
    monkeypatch.undo()
    assert before.left() == []


def test_instruments_of_a_test_go_with_it() -> None:
    def run_worker(sink: Sink) -> None:
        otel_rl.init(experiment="e", role="trainer", endpoint=sink.url, export_interval_s=60)

    with serve(Sink()) as sink:
        run_worker(sink)
        metrics.get_meter_provider().get_meter("m").create_gauge("of another test")
        before = State()
        with own_instruments():
            provider: Any = metrics.get_meter_provider()
            provider.get_meter("m").create_observable_counter("left", [lambda _: [Observation(7)]])
            assert [one.partition(" ")[0] for one in before.left()] == ["observed"]
            assert otel_rl.finish(timeout_s=60)
        assert [*sums(sink.metrics, "left").values()] == [7]
        exported = len(sink.metrics)
        run_worker(sink)
        otel_rl.log({"loss": 1.0})
        assert otel_rl.finish(timeout_s=60)
    assert sums(sink.metrics[exported:], "left") == {}
    assert len(sink.measurements("loss")) == 1
