"""What holds for every test."""

import gc
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.leftovers import State, begin_anew, forget_the_launch
from tests.support.marks import ProcessMark
from tests.support.postgres import PostgresServer
from tests.support.slow import draw_few
from tests.support.strays import processes_with

# How long an example takes says what else runs on the machine, and how many had to be thrown away
# is luck; neither says that the code is wrong. A test that suppresses others has to repeat these.
settings.register_profile(
    "otel_rl",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("otel_rl")

_MARK = "OTEL_RL_TEST_RUN"
_DEADLINE_S = 240.0

_LAB = [Path(__file__).parent / folder for folder in ("lab", "frameworks")]


def pytest_configure(config: pytest.Config) -> None:
    """Hold the mark ``process`` to what tests do, and let programs that tests start hear Ctrl-C.

    Without the slow tests, property tests draw fewer examples.

    A shell that runs a command in the background has it ignore SIGINT, which children inherit.
    """
    config.pluginmanager.register(ProcessMark())
    if "not slow" in config.option.markexpr:
        draw_few()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders all of whose tests would be deselected, as what they import takes time."""
    return True if "not lab" in config.option.markexpr and collection_path in _LAB else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the collector of garbage from what collection makes, then and in all tests.

    It stays until the end: a million objects to go through again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that ask for a server, and let several workers begin with the long files.

    A worker takes a file at a time, in this order. Files that need the lab take turns with others
    that start programs, so that few of the heaviest run at a time. The last ones are short, so that
    no worker is alone for long. One worker keeps the order of the files, in which unit tests come
    early.
    """
    for item in items:
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.process)
    if hasattr(config, "workerinput"):
        kinds: dict[Path, int] = {}
        for item in items:
            kind = 0 if item.get_closest_marker("lab") else 2
            kind = min(kind, 1 if item.get_closest_marker("process") else 2)
            kinds[item.path] = min(kind, kinds.get(item.path, kind))
        files: Counter[int] = Counter()
        turns: dict[Path, tuple[bool, int, int]] = {}
        for path, kind in kinds.items():
            turns[path] = (kind == 2, files[kind], kind)
            files[kind] += 1
        items.sort(key=lambda item: turns[item.path])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped, once for each reason: pytest has a line for each test."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, tests in reasons.most_common():
        terminalreporter.write_line(f"SKIPPED {tests}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def no_process_outlives_the_tests() -> Iterator[None]:
    """Every process that a test starts inherits a mark; at the end none with it may be left."""
    mark = os.environ[_MARK] = uuid.uuid4().hex
    # Otherwise each worker in the tests' own process would ask git about their code.
    os.environ["OTEL_RL_PROVENANCE"] = "off"
    # And what pytest writes is no worker's console.
    os.environ["OTEL_RL_CONSOLE"] = "off"
    # Nor does a worker without an endpoint start a bridge: tests of that turn it on.
    os.environ["OTEL_RL_EMBED"] = "off"
    # Nor does a slow test get rows of the machine.
    os.environ["OTEL_RL_HOST"] = "off"
    # Otherwise each bridge would end with a process that loads Arrow; tests of it turn it on.
    os.environ["OTEL_RL_BRIDGE__ARCHIVE__ENABLED"] = "false"
    yield
    deadline = time.monotonic() + _DEADLINE_S
    while (left := processes_with(_MARK, mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"processes that tests left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def a_file_leaves_the_process_as_it_was(
    no_process_outlives_the_tests: None, request: pytest.FixtureRequest
) -> Iterator[None]:
    """What a file of tests leaves behind would make tests of others fail, by chance."""
    begin_anew()
    before = State()
    yield
    left = "; ".join(before.left())
    assert not left, f"{request.node.name} leaves to other files: {left}"


@pytest.fixture(autouse=True)
def each_test_is_a_launch_of_its_own(no_process_outlives_the_tests: None) -> Iterator[None]:
    """What a worker keeps for the next one of its process, and for children, ends with the test."""
    yield
    forget_the_launch()


@pytest.fixture(scope="session")
def postgres(no_process_outlives_the_tests: None) -> Iterator[PostgresServer]:
    """A server for all tests of this process, each of which has a schema of its own."""
    with PostgresServer() as server:
        yield server
