"""What holds for every test that starts processes."""

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.support.strays import processes_with

_MARK = "OTEL_RL_TEST_CASE"


@pytest.fixture(autouse=True)
def a_test_that_fails_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test that gave up half-way has started is ended before the next one begins."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(_MARK, mark)
    yield
    for pid in processes_with(_MARK, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
