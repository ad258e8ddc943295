"""W&B has the same run from finished records as from ``run.log``, by the real SDK."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import wandb

from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.delivery.wandb.history_sender import SUPPORTED, HistorySender
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.bridge.tracker_keys import DIAGNOSIS_ALERT
from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, ExperimentKey, KeySpec, Row, Table
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from tests.wandb_offline import OfflineRun, read_offline_run, run_directories
from tests.wandb_server import WandbServer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("no_login")]

NOON_NS = 1_700_000_000_250_000_000
KEY = ExperimentKey("grpo")

REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", axis="step")

VALUES: Sequence[dict[str, float]] = (
    {"trainer/loss": 0.5, "trainer/steps": 3, "big": 2**70, "flag": True},
    {"trainer/loss": math.nan, "up": math.inf, "down": -math.inf},
    {"größe/損失": 0.1 + 0.2, "😀": 1e300, "tiny": 5e-324, "minus": -0.0, "e": 1e16, "f": 1e-7},
    {"with.dot": 1.0, 'with"quote': 2.0, "with\\backslash": 3.0, "_private": 4.0, "": 5.0},
    {"half\ud800pair": 1.0, "x" * 300: 2.0},
    {},
    {f"wide/{n}": n / 7 for n in range(3_000)},
)


def rows() -> Sequence[Row]:
    """Rows of every kind, some of which are more than numbers and texts.

    Each comes twice, as the first one with a key is logged in any case.
    """
    plain = [
        Row(n, n // 2, NOON_NS + n, values, policy_version=n if n % 4 > 1 else None)
        for n, values in enumerate(values for values in VALUES for _ in range(2))
    ]
    end = len(plain)
    samples = Table(["step", "prompt", "worker"], [[1, "2 + 2", "generator/0"]])
    lines = Table(CONSOLE_COLUMNS, [[0, NOON_NS, "trainer/0", "stdout", "begun"]])
    more = [
        Row(end, 4, NOON_NS, {"trainer/loss": 1.0}, labels={"critical_path/worker": "häng, 1\n"}),
        Row(end + 1, 4, NOON_NS, {}, tables={"rollouts": samples}),
        Row(end + 2, 4, NOON_NS, {REWARD.key: 0.5}, new_keys=(REWARD,)),
        Row(end + 3, 5, NOON_NS, {REWARD.key: 0.9}),
        Row(end + 4, 5, NOON_NS, {}, tables={CONSOLE: lines}),
        Row(end + 5, 5, NOON_NS, {}, labels={DIAGNOSIS_ALERT: "a worker hangs"}),
        Row(end + 6, 2, NOON_NS, {REWARD.key: 0.1}, attempt=2),
        Row(end + 7, 2, NOON_NS, {REWARD.key: 0.2}, attempt=2),
    ]
    return [*plain, *more]


def written(directory: Path, rows: Sequence[Row]) -> OfflineRun:
    directory.mkdir()
    tracker = WandbTracker()
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), directory, (("mode", "offline"),))
    assert tracker.open(run) == 0
    tracker.write(rows)
    tracker.close(exit_code=0)
    (made,) = run_directories(directory, run.run_id)
    return read_offline_run(made)


def shown(run: OfflineRun) -> dict[str, Any]:
    """Return a run as text that tells NaN, without random names and times."""
    parts: dict[str, Any] = asdict(run)
    # wandb-core keeps no order of keys.
    parts["history"] = [_text(line) for line in parts["history"]]
    return parts | {name: _text(parts[name]) for name in ("summary", "config")}


def _text(line: dict[str, object]) -> str:
    # wandb-core writes whole numbers without a fraction, -0.0 as well: as doubles they are equal.
    kept = {
        key: value + 0.0
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
        for key, value in line.items()
        if "runtime" not in key
    }
    return re.sub(r"wandb-client-artifact://\w+", "", repr(sorted(kept.items())))


def test_a_run_of_records_is_that_of_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = written(tmp_path / "records", rows())
    assert "one by one" not in caplog.text
    monkeypatch.setattr(wandb, "__version__", "9.9.9")
    logged = written(tmp_path / "logged", rows())
    assert "one by one" in caplog.text
    assert len(records.history) == len(rows())
    assert shown(records) == shown(logged)
    assert records.metrics[REWARD.key] == "step/attempt_2"


def test_many_rows_are_there_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[int] = []
    log = wandb.Run.log

    def counted(run: wandb.Run, data: dict[str, Any], step: int, **options: Any) -> None:
        logged.append(step)
        log(run, data, step, **options)

    monkeypatch.setattr(wandb.Run, "log", counted)
    many = [Row(n, n, NOON_NS + n, {f"m{m}": n + m / 10 for m in range(50)}) for n in range(3_000)]
    run = written(tmp_path / "run", many)
    assert logged == [0]  # the keys are new
    assert [line["_step"] for line in run.history] == [*range(3_000)]
    assert all(line["m7"] == n + 0.7 for n, line in enumerate(run.history))
    assert run.summary["m7"] == 2_999.7
    assert run.summary["_step"] == 2_999


def test_keys_that_come_late_are_logged_and_then_are_in_the_records(tmp_path: Path) -> None:
    late = [
        Row(n, n, NOON_NS + n, {"a": n + 0.5, **({"b": n + 0.25} if n % 3 == 2 else {})})
        for n in range(9)
    ]
    run = written(tmp_path / "run", late)
    assert [(line["a"], line.get("b")) for line in run.history] == [
        (n + 0.5, n + 0.25 if n % 3 == 2 else None) for n in range(9)
    ]
    assert (run.summary["a"], run.summary["b"]) == (8.5, 8.25)


def test_a_resumed_run_goes_on_at_its_step_and_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), tmp_path, (("mode", "online"),))
    with WandbServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for begin, later_s in ((0, 1_000), (20, 0)):
            now = partial(_later, later_s)
            monkeypatch.setattr("otel_rl.bridge.delivery.wandb.history_sender.time", now)
            tracker = WandbTracker()
            assert tracker.open(run) == begin
            tracker.write([Row(n, n, NOON_NS + n, {"a": n / 4}) for n in range(begin, begin + 20)])
            assert tracker.close(exit_code=0) == begin + 20
        history = server.history(run.run_id)
    assert [(line["_step"], line["a"]) for line in history] == [(n, n / 4) for n in range(40)]
    # Longer than all of this test: the time before the run was resumed is included.
    assert history[19]["_runtime"] > 1_000
    assert history[39]["_runtime"] > 1_000


def _later(seconds: float) -> float:
    return time.time() + seconds


def test_the_version_that_is_installed_is_one_that_was_tried() -> None:
    assert wandb.__version__.startswith(SUPPORTED)


class Changed:
    """A run whose interface is another one."""

    settings = wandb.Settings()
    _interface = object()

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, object]]] = []

    def log(self, data: dict[str, object], *, step: int, commit: bool) -> None:
        assert commit
        self.logged.append((step, data))


def test_rows_are_logged_one_by_one_if_the_interface_is_another_one() -> None:
    run = Changed()
    log = HistorySender(run)  # type: ignore[arg-type]
    log.add({"loss": 0.5}, 0)
    log.add({"loss": 0.25}, 1)
    log.flush()
    assert run.logged == [(0, {"loss": 0.5}), (1, {"loss": 0.25})]
