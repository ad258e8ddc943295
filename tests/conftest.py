"""What holds for every test."""

import os
import time
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import PostgresServer
from tests.strays import processes_with

# How long an example takes says what else runs on the machine, and how many had to be thrown away
# is luck; neither says that the code is wrong. A test that suppresses others has to repeat these.
settings.register_profile(
    "otel_rl",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("otel_rl")

_MARK = "OTEL_RL_TEST_RUN"
_DEADLINE_S = 60.0


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_tests() -> Iterator[None]:
    """Every process that a test starts inherits a mark; at the end none with it may be left."""
    mark = os.environ[_MARK] = uuid.uuid4().hex
    yield
    deadline = time.monotonic() + _DEADLINE_S
    while (left := processes_with(_MARK, mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"processes that tests left behind: {left}"


@pytest.fixture(scope="session")
def postgres(no_process_outlives_the_tests: None) -> Iterator[PostgresServer]:
    """A server for all tests of this process, each of which has a schema of its own."""
    with PostgresServer() as server:
        yield server
