"""Real servers are killed as well, and have every acknowledged measurement once."""

from pathlib import Path

import pytest

from tests.faults.real_servers import run_real_servers

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_servers_of_mlflow_and_trackio_have_everything_once_whatever_is_killed(
    tmp_path: Path,
) -> None:
    story = run_real_servers(tmp_path, kills=12)
    assert story.is_sound, story.report()
    assert story.kills.total() >= 12
