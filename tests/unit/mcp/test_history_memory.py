"""All threads that answer keep histories in one bounded memory."""

from pathlib import Path

import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.diagnosis.histories import MemoryBound
from otel_rl.mcp.answers import Answers
from otel_rl.records import ExperimentKey
from tests.support.view_runs import LookedAt, write_run

RUNS = ("a", "b", "c", "d")


@pytest.fixture
def settings(tmp_path: Path) -> BridgeSettings:
    for run in RUNS:
        write_run(tmp_path / run, LookedAt(ExperimentKey(run), steps=50))
    return BridgeSettings(data=tmp_path)


def ask(source: Answers, run: str) -> None:
    assert source.diagnose(None, run, None, now=False)["verdict"]
    assert source.history(None, run, "trainer/loss", None, 100)["key"]


def test_histories_of_all_threads_stay_within_one_bound(settings: BridgeSettings) -> None:
    alone = MemoryBound(1 << 30)
    ask(Answers(settings, alone), RUNS[0])
    assert alone.used_bytes

    bound = MemoryBound(2 * alone.used_bytes)
    for run in RUNS:  # each thread has a source of its own
        ask(Answers(settings, bound), run)
    assert alone.used_bytes < bound.used_bytes <= 2 * alone.used_bytes
