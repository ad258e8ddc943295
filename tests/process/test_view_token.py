"""The link of ``otel-rl view`` for other machines."""

import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, clean_environment
from tests.support.view_runs import LookedAt, write_run

pytestmark = pytest.mark.process


def test_the_printed_link_has_the_token_that_opens_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, LookedAt())
    with subprocess.Popen(
        [*OTEL_RL, "view", str(tmp_path), "--listen", "0.0.0.0:0"],
        env=clean_environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://[^:]+:(\d+)/\?token=(\S+)", process.stderr.readline())
            assert found is not None
            page = f"http://127.0.0.1:{found[1]}/api/runs"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(page)
            request = urllib.request.Request(page, headers={"authorization": f"Bearer {found[2]}"})
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200
        finally:
            process.terminate()
            process.wait(90)
