"""No process forks in the middle of a gRPC call, unless the call takes long."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from otel_rl.worker.export import grpc_forks
from otel_rl.worker.export.grpc_forks import Calls

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system"),
]


@contextmanager
def call_under_way(calls: Calls) -> Iterator[threading.Event]:
    """A thread inside a call, which ends with the event."""
    inside, end = threading.Event(), threading.Event()

    def call() -> None:
        with calls.one():
            inside.set()
            end.wait()

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    yield end
    end.set()
    thread.join()


def fork() -> int:
    """Return the exit status of a child that ends with 0 if it can make a call."""
    pid = os.fork()
    if pid == 0:
        try:
            with Calls().one():
                os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_waits_for_the_end_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_forks, "MAX_WAIT_S", 600.0)
    statuses: list[int] = []
    with call_under_way(Calls()) as end:
        forking = threading.Thread(target=lambda: statuses.append(fork()))
        forking.start()
        forking.join(0.2)
        assert forking.is_alive()  # it would have forked long ago
        end.set()
        forking.join()
    assert statuses == [0]


def test_a_fork_waits_for_no_call_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_forks, "MAX_WAIT_S", 0.0)
    with call_under_way(Calls()):
        assert fork() == 0


def test_calls_go_on_after_a_fork_in_parent_and_child() -> None:
    calls = Calls()
    assert fork() == 0
    with calls.one():
        pass


def test_a_child_that_forks_waits_for_no_call_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_forks, "MAX_WAIT_S", 0.0)
    with call_under_way(Calls()):
        pid = os.fork()
        if pid == 0:
            grpc_forks.MAX_WAIT_S = 600.0  # type: ignore[misc]
            os._exit(fork())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
