"""One hook records what a library logs by itself, whatever it logs to."""

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import otel_rl
from otel_rl.integrations.adapter import Recorder, WorkerNames, automatically, before
from otel_rl.integrations.hook import Hook, record_tensorboard
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink


class Logger:
    """A framework's logger."""

    def __init__(self, project: str | None = None) -> None:
        self.project = project
        self.lines: list[tuple[dict[str, Any], int]] = []

    def log(self, metrics: dict[str, Any], step: int) -> str:
        self.lines.append((metrics, step))
        return "logged"

    def close(self) -> None:
        self.lines.append(({}, -1))


@pytest.fixture
def kind() -> type[Logger]:
    """A logger's class that nobody has hooked yet."""
    return type("Logger", (Logger,), {})


def follow(kind: type[Logger], hook: Hook) -> None:
    def log(logger: Logger, metrics: dict[str, Any], step: int) -> None:
        hook.begin(WorkerNames(logger.project, role="trainer"), config={"lr": 0.1})
        hook.log(metrics, step)

    before(kind, "log", log)
    before(kind, "close", hook.deliver)


def automatic(name: str) -> Hook:
    """A hook that nobody has asked for."""
    with automatically():
        return Hook(name)


def test_what_a_logger_is_given_is_recorded_by_the_table_and_logged_as_before(
    sink: Sink, kind: type[Logger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "roll", ModuleType("roll"))
    follow(kind, Hook("mine"))
    logger = kind()
    assert logger.log({"actor": {"pg_loss": 0.5}, "depth": 2, "text": "no number"}, 3) == "logged"
    logger.close()
    (loss,), (depth,) = sink.measurements("rl.train.loss"), sink.measurements("depth")
    assert (loss.value, loss.step, loss.resource["rl.worker.role"]) == (0.5, 3, "trainer")
    assert (depth.value, depth.step) == (2, 3)
    assert logger.lines[0][1] == 3
    assert GUARD.drops.counts()["not_a_number"] == 1  # type: ignore[index]  # a StrEnum is its text
    (config,) = filter(
        None, (e.attributes.get("rl.experiment.config") for e in sink.events("rl.experiment.start"))
    )
    assert config == {"lr": 0.1}


def test_a_function_that_is_hooked_twice_records_once(sink: Sink, kind: type[Logger]) -> None:
    for _ in range(2):
        follow(kind, Hook("mine"))
    kind().log({"x": 1.0}, 1)
    assert otel_rl.flush(timeout_s=60)
    assert [m.value for m in sink.measurements("x")] == [1.0]


def test_a_wrong_setting_is_said_and_the_library_goes_on(
    sink: Sink,
    kind: type[Logger],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("OTEL_RL_EXPERIMENT")
    follow(kind, automatic("unasked"))
    with caplog.at_level(logging.WARNING, "otel_rl"):
        assert kind().log({"x": 1.0}, 1) == "logged"
    assert "An adapter is not switched on" in caplog.text
    assert sink.requests == 0


def test_a_hook_that_nobody_asked_for_gives_way_to_a_program_that_reports_by_itself(
    sink: Sink, kind: type[Logger]
) -> None:
    follow(kind, automatic("unasked"))
    otel_rl.init(role="trainer")
    kind().log({"x": 1.0}, 1)
    assert otel_rl.flush(timeout_s=60)
    assert sink.measurements("x") == []


def test_a_library_of_another_version_goes_on_and_the_error_is_counted(
    sink: Sink, kind: type[Logger]
) -> None:
    before(kind, "log", lambda _logger, _metrics: None)  # lacks the step
    assert kind().log({"x": 1.0}, 1) == "logged"
    assert GUARD.drops.counts()["internal"] == 1  # type: ignore[index]  # a StrEnum is its text


def test_a_process_that_has_finished_begins_again(sink: Sink, kind: type[Logger]) -> None:
    follow(kind, Hook("mine"))
    for _ in range(2):
        kind().log({"x": 1.0}, 1)
        otel_rl.finish(timeout_s=60)
    assert len(sink.measurements("x")) == 2


def test_scalars_of_a_summary_writer_stand_at_their_step_until_the_end(
    sink: Sink, tensorboardx: Callable[[], Any]
) -> None:
    writers = record_tensorboard()
    kind = tensorboardx().SummaryWriter
    train, evaluation = kind("runs/a"), kind("runs/eval")
    train.add_scalar("loss", 0.5, 7)
    evaluation.add_scalar("loss", 0.25, global_step=7)
    train.add_scalars("of", {"a": 1.0, "b": 2.0}, 8)
    train.add_histogram("weights", [1.0], 8)
    train.add_hparams({"lr": 0.1}, {"accuracy": 1.0})
    writers.stop()
    train.add_scalar("loss", 0.0, 9)
    assert otel_rl.flush(timeout_s=60)
    found = {m.name: (m.step, m.value) for m in sink.measurements()}
    assert found == {"loss": (7, 0.5), "eval/loss": (7, 0.25), "of/a": (8, 1.0), "of/b": (8, 2.0)}
    assert train.written[-1] == ("loss", 0.0, 9)


def test_what_a_library_logs_to_two_places_is_recorded_once(sink: Sink) -> None:
    hooks = [automatic(name) for name in ("first_place", "second_place")]
    for step in (1, 2):
        for hook in hooks if step == 1 else reversed(hooks):
            hook.begin(WorkerNames(role="trainer"))
            hook.log({"twice": step}, step)
    hooks[1].log({"own": 3.0}, 2)
    hooks[0].deliver()
    assert [(m.value, m.step) for m in sink.measurements("twice")] == [(1, 1), (2, 2)]
    assert [m.value for m in sink.measurements("own")] == [3.0]


def test_a_hook_that_nobody_asked_for_is_silent_beside_an_adapter(sink: Sink) -> None:
    hook = automatic("library")
    hook.begin(WorkerNames(role="trainer"))
    hook.log({"before": 1.0}, 1)
    Recorder("mine")
    hook.log({"after": 2.0}, 2)
    hook.deliver()
    assert [m.name for m in sink.measurements()] == ["before"]


def test_what_several_threads_log_at_once_is_recorded_from_the_start(
    sink: Sink, kind: type[Logger]
) -> None:
    hook, per_thread = Hook("mine"), 200
    follow(kind, hook)
    all_at_once = threading.Barrier(3)

    def log(name: str) -> None:
        all_at_once.wait(60)
        for step in range(per_thread):
            kind("p").log({name: 1.0}, step)

    threads = [threading.Thread(target=log, args=(name,)) for name in ("actor", "critic", "env")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert otel_rl.flush(timeout_s=60)
    counts = Counter(one.name for one in sink.measurements())
    logged = {name: n for name, n in counts.items() if name.endswith(("actor", "critic", "env"))}
    assert sorted(logged.values()) == [per_thread] * 3
