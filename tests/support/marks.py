"""Keeps the mark ``process`` true: a test that starts a process without it fails."""

import sys
from collections.abc import Iterator

import pytest

_STARTS = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "subprocess.Popen",
    }
)
"""The audit events of Python that start a process or turn into another program."""


class ProcessMark:
    """A plugin of pytest. It notes each process that starts during a test and its fixtures."""

    def __init__(self) -> None:
        self._started: list[str] = []
        sys.addaudithook(self._note)  # for the life of this process: a hook cannot be removed

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in _STARTS:
            self._started.append(f"{event} {arguments[0] if arguments else ''}".strip())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Begin with none."""
        self._started.clear()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Fail a test without the mark that has started one, whatever else it found."""
        yield
        if self._started and item.get_closest_marker("process") is None:
            pytest.fail(
                f"starts a process ({self._started[0]}) without the mark `process`", pytrace=False
            )
