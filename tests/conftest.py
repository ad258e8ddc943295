"""What holds for every test."""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

_MARK = "OTEL_RL_TEST_RUN"
_DEADLINE_S = 15.0


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_tests() -> Iterator[None]:
    """Every process that a test starts inherits a mark; at the end none with it may be left."""
    mark = f"{_MARK}={uuid.uuid4().hex}"
    os.environ[_MARK] = mark.partition("=")[2]
    yield
    deadline = time.monotonic() + _DEADLINE_S
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"processes that tests left behind: {left}"


def _marked(mark: str) -> list[str]:
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        pid = environ.parent.name
        if pid == str(os.getpid()):
            continue
        try:
            if mark.encode() in environ.read_bytes().split(b"\0"):
                command = (environ.parent / "cmdline").read_bytes()
                found.append(f"{pid} {command.replace(bytes(1), b' ').decode()}")
        except OSError:
            continue  # gone by now, or not ours
    return found
