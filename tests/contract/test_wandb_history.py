"""Rows of every kind are in a W&B run once and in order, by the real SDK."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.bridge.keys import DIAGNOSIS_ALERT
from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, ExperimentKey, KeySpec, Row, Table
from otel_rl.run_id import run_id
from otel_rl.semconv import names
from tests.support.wandb_offline import OfflineRun, read_offline_run, run_directories
from tests.support.wandb_server import WandbServer

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
    """Rows of every kind, some of which are more than numbers and texts."""
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


def test_rows_of_every_kind_are_there_with_the_axis_of_their_keys(tmp_path: Path) -> None:
    run = written(tmp_path / "run", rows())
    assert [line["_step"] for line in run.history] == [*range(len(rows()))]
    assert run.history[12]["wide/2999"] == 2_999 / 7
    line: dict[str, object] = {**run.history[14]}
    assert line["critical_path/worker"] == "häng, 1\n"
    assert run.metrics[REWARD.key] == "step/attempt_2"


@pytest.mark.slow
def test_many_rows_are_there_once_and_in_order(tmp_path: Path) -> None:
    many = [Row(n, n, NOON_NS + n, {f"m{m}": n + m / 10 for m in range(50)}) for n in range(3_000)]
    run = written(tmp_path / "run", many)
    assert [line["_step"] for line in run.history] == [*range(3_000)]
    assert all(line["m7"] == n + 0.7 for n, line in enumerate(run.history))
    assert run.summary["m7"] == 2_999.7
    assert run.summary["_step"] == 2_999


def test_keys_that_come_late_are_in_the_rows_that_have_them(tmp_path: Path) -> None:
    late = [
        Row(n, n, NOON_NS + n, {"a": n + 0.5, **({"b": n + 0.25} if n % 3 == 2 else {})})
        for n in range(9)
    ]
    run = written(tmp_path / "run", late)
    assert [(line["a"], line.get("b")) for line in run.history] == [
        (n + 0.5, n + 0.25 if n % 3 == 2 else None) for n in range(9)
    ]
    assert (run.summary["a"], run.summary["b"]) == (8.5, 8.25)


def test_a_resumed_run_goes_on_at_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), tmp_path, (("mode", "online"),))
    with WandbServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for begin in (0, 20):
            tracker = WandbTracker()
            assert tracker.open(run) == begin
            tracker.write([Row(n, n, NOON_NS + n, {"a": n / 4}) for n in range(begin, begin + 20)])
            assert tracker.close(exit_code=0) == begin + 20
        history = server.history(run.run_id)
    assert [(line["_step"], line["a"]) for line in history] == [(n, n / 4) for n in range(40)]
