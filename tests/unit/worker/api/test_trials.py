"""Several trials in a process, as a receiver reads them."""

import os
from collections.abc import Iterator

import pytest

import otel_rl
from otel_rl.integrations.adapter import (
    WorkerNames,
    is_instrumented,
    start,
    trial,
)
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.session import GUARD
from tests.support.otlp_sink import Sink


@pytest.fixture
def environment(
    sink: Sink, clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sink]:
    """As under ``otel-rl run --trial monday``."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
    monkeypatch.setenv("OTEL_RL_EXIT_TIMEOUT", "60")
    monkeypatch.setenv("OTEL_RL_EXPERIMENT", "exp")
    monkeypatch.setenv("OTEL_RL_TRIAL", "monday")
    monkeypatch.setattr(session, "_has_ended", False)  # by the sessions of other tests
    GUARD.drops.reset()
    yield sink
    otel_rl.finish(timeout_s=60)
    GUARD.drops.reset()


def log(value: float) -> None:
    otel_rl.log({"rl.train.loss": value}, step=1)


def trials(sink: Sink) -> list[tuple[object, object, float]]:
    """Trial, role and value of each measurement."""
    assert otel_rl.flush(timeout_s=60) or otel_rl.finish()
    return [
        (m.resource["rl.trial.name"], m.resource["rl.worker.role"], m.value)
        for m in sink.measurements("rl.train.loss")
    ]


def test_each_trial_is_a_run_of_its_own_and_so_is_what_follows(environment: Sink) -> None:
    for number in range(2):
        with trial(f"lr_{number}"):
            log(number)
    log(2)
    assert trials(environment) == [
        ("monday-lr_0", "trainer", 0),
        ("monday-lr_1", "trainer", 1),
        ("monday", "trainer", 2),
    ]


def test_a_worker_that_began_before_goes_on_in_each_trial_and_after(environment: Sink) -> None:
    otel_rl.init(role="trainer")
    log(1)
    with trial("lr_0"):
        log(2)
        otel_rl.init(role="trainer")  # of this trial by the environment
        log(3)
    log(4)
    assert trials(environment) == [
        ("monday", "trainer", 1),
        ("monday-lr_0", "trainer", 2),
        ("monday-lr_0", "trainer", 3),
        ("monday", "trainer", 4),
    ]


def configs(sink: Sink) -> dict[object, dict[str, object]]:
    """Config of each trial, as a bridge merges what it is told."""
    assert otel_rl.flush(timeout_s=60) or otel_rl.finish()
    found: dict[object, dict[str, object]] = {}
    for key in ("rl.experiment.config_defaults", "rl.experiment.config"):
        for event in sink.events("rl.experiment.start"):
            config = found.setdefault(event.resource["rl.trial.name"], {})
            given = event.attributes.get(key, {})
            assert isinstance(given, dict)
            config.update(given)
    return found


def test_each_trial_has_its_config_within_that_of_the_command(
    environment: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_CONFIG", '{"model": "tiny", "lr": 0}')
    with trial("lr_0", {"lr": 0.5, "layers": [1, 2], "kind": GUARD.__class__}):
        with trial("seed_1", {"seed": 1}):
            log(1)
        log(2)
    with trial("lr_1"):
        log(3)
    kind = str(GUARD.__class__)
    assert configs(environment) == {
        "monday-lr_0-seed_1": {
            "model": "tiny", "lr": 0.5, "layers": [1, 2], "kind": kind, "seed": 1
        },
        "monday-lr_0": {"model": "tiny", "lr": 0.5, "layers": [1, 2], "kind": kind},
        "monday-lr_1": {"model": "tiny", "lr": 0},
    }  # fmt: skip
    assert os.environ["OTEL_RL_CONFIG"] == '{"model": "tiny", "lr": 0}'


def test_a_wrong_config_of_the_environment_is_left_out_and_told(
    environment: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    otel_rl.init(role="trainer")
    monkeypatch.setenv("OTEL_RL_CONFIG", "[1]")
    with trial("lr_0", {"lr": 0.5}):
        log(1)
    assert configs(environment)["monday-lr_0"] == {"lr": 0.5}
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("OTEL_RL_CONFIG: must be a JSON object (got '[1]').")
    assert told.endswith("It is left out of the run.")
    assert GUARD.drops.counts().get(DropReason.INTERNAL) is None


def test_a_worker_that_began_before_has_the_config_of_each_trial_and_its_own(
    environment: Sink,
) -> None:
    otel_rl.init(role="trainer", config={"seed": 1, "lr": 7})
    with trial("lr_0", {"lr": 0.5}):
        log(1)
    with trial("lr_1", {"lr": 0.25}):
        log(2)
    assert configs(environment) == {
        "monday": {"seed": 1, "lr": 7},
        "monday-lr_0": {"lr": 0.5},
        "monday-lr_1": {"lr": 0.25},
    }


def test_a_program_overrides_the_config_of_its_environment(
    environment: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_CONFIG", '{"model": "tiny", "lr": 0}')
    otel_rl.init(role="trainer", config={"lr": 1})
    otel_rl.log_config({"lr": 2})
    otel_rl.log_config({"layers": 3})
    assert configs(environment) == {"monday": {"model": "tiny", "lr": 2, "layers": 3}}


def test_a_guess_that_init_corrects_gives_the_right_run_the_environments_config(
    environment: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RL_CONFIG", '{"lr": 1}')
    log(1)
    assert otel_rl.flush(timeout_s=60)
    otel_rl.init(role="trainer", trial="tuesday")
    assert configs(environment)["tuesday"] == {"lr": 1}


def test_a_config_that_no_environment_holds_is_cut_and_counted(environment: Sink) -> None:
    with trial("0", {"lr": 0.5, "long": ["x" * 4000] * 10}):
        log(1)
    assert configs(environment) == {"monday-0": {"lr": 0.5}}
    assert GUARD.drops.counts()[DropReason.TOO_LARGE] == 1


def test_an_adapter_starts_a_worker_in_each_trial(environment: Sink) -> None:
    for number in range(2):
        with trial(f"lr_{number}"):
            start(WorkerNames(role="trainer"))
            assert not is_instrumented()
            log(number)
    assert trials(environment) == [
        ("monday-lr_0", "trainer", 0),
        ("monday-lr_1", "trainer", 1),
    ]


def test_a_trial_within_a_trial_is_a_run_of_its_own_and_the_outer_one_goes_on(
    environment: Sink,
) -> None:
    for job in range(2):
        with trial(f"job_{job}"):
            with trial("study_0"):
                log(job)
            log(job + 10)
    assert trials(environment) == [
        ("monday-job_0-study_0", "trainer", 0),
        ("monday-job_0", "trainer", 10),
        ("monday-job_1-study_0", "trainer", 1),
        ("monday-job_1", "trainer", 11),
    ]


def test_children_of_a_trial_inherit_it(environment: Sink) -> None:
    before = dict(os.environ)
    with trial("lr_0"):
        assert os.environ["OTEL_RL_TRIAL"] == "monday-lr_0"
    assert dict(os.environ) == before


def test_a_trial_that_raises_has_failed(environment: Sink) -> None:
    def failing() -> None:
        otel_rl.init(role="trainer")
        log(1)
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"), trial("lr_0"):
        failing()
    (end,) = environment.events("rl.worker.end")
    assert end.resource["rl.trial.name"] == "monday-lr_0"
    assert end.attributes["rl.worker.status"] == "failed"
    assert end.attributes["error.type"] == "ValueError"


def test_a_worker_that_the_program_has_ended_stays_ended(environment: Sink) -> None:
    otel_rl.init(role="trainer")
    otel_rl.finish(timeout_s=60)
    with trial("lr_0"):
        log(1)
    assert environment.measurements("rl.train.loss") == []
