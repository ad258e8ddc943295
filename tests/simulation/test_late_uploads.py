"""A run is continued at its end while an upload of a dead writer lands, whatever is answered."""

import random
from collections import Counter
from pathlib import Path

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from tests.simulation.clock import Clock
from tests.simulation.history import History
from tests.simulation.library import Library, installed

WORLDS = 400
THERE = 10
"""Lines of the run before the upload."""
LATE = 3
RUN = RunInfo(ExperimentKey("grpo"), "run", Path())


def line(place: int) -> str:
    return f'{{"_step": {place}}}'


def opened(seed: int) -> tuple[bool, list[str]]:
    """Continue a run beside a late upload.

    Returns:
        Whether it was opened, and rows that are in the line of another one.
    """
    chance, clock = random.Random(seed), Clock()
    history = History(chance, clock, Counter())
    history.post(0, [line(place) for place in range(THERE)])
    clock.now_s = 60.0
    history.lag_s = 1.0
    lands_s = clock() + chance.uniform(0.0, 2.5)
    late = [line(place) for place in range(THERE, THERE + LATE)]

    def pass_time() -> None:
        if late and clock() >= lands_s:
            history._put(THERE, late)
            late.clear()

    clock.meanwhile = pass_time
    for _ in range(20):  # the next second, in which it may land
        clock.sleep(0.05)
    library = Library({RUN.run_id: history}, clock, chance)
    with installed(library, clock):
        tracker = WandbTracker()
        try:
            start = tracker.open(RUN)
        except TrackerUnavailable:  # it is tried again later
            return False, []
        tracker.write([Row(start, start, 0, {"x": 1.0})])
        for _ in range(5):
            library.upload()
    # The successor may send rows of the late upload again; they are the same ones then.
    return True, [words for words in history.wrong if words.startswith("row ")]


def test_no_line_is_overwritten_by_a_row_of_another_place() -> None:
    worlds = [opened(seed) for seed in range(WORLDS)]
    assert {tuple(wrong) for _, wrong in worlds} == {()}
    assert any(is_open for is_open, _ in worlds)
    assert not all(is_open for is_open, _ in worlds)
