"""A full disk: nothing is missing, or the bridge says so; and what was complete stays."""

from pathlib import Path

import pytest

from tests.faults.full_disk import TRACKERS, run_story

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_is_whole_or_the_bridge_says_that_it_is_not(tmp_path: Path, tracker: str) -> None:
    story = run_story(tracker, "short files", tmp_path)  # `make faults` also mounts disks
    assert not story.problems, story.report()
    assert [life.status for life in story.lives] == [1, 0, 1, 0]
