"""A full disk: nothing is missing, or the bridge says so; and what was complete stays.

`make faults` tells the story of W&B as well, and on small file systems: each writer that loads W&B
takes seconds. What its tracker does is tested without a bridge, see
``tests/contract/test_offline_on_a_full_disk.py``.
"""

from pathlib import Path

import pytest

from tests.faults.full_disk import run_story

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_run_is_whole_or_the_bridge_says_that_it_is_not(tmp_path: Path) -> None:
    story = run_story("jsonl", "short files", tmp_path)
    assert not story.problems, story.report()
    assert [life.status for life in story.lives] == [1, 0, 1, 0]
