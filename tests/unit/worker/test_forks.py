"""No process forks in the middle of what would hang its child, unless that takes long."""

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

import otel_rl
from otel_rl.worker import forks
from otel_rl.worker.forks import Uncut
from tests.support.forks import forked
from tests.support.leftovers import own_instruments
from tests.support.otlp_sink import Sink

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system"),
]


@contextmanager
def work_under_way(uncut: Uncut) -> Iterator[threading.Event]:
    """A thread inside uncut work, which ends with the event."""
    inside, end = threading.Event(), threading.Event()

    def work() -> None:
        with uncut.work():
            inside.set()
            end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    yield end
    end.set()
    thread.join()


def work_once() -> None:
    with Uncut().work():
        pass


def fork() -> int:
    """Return the exit status of a child that does some work."""
    return forked(work_once)


@pytest.fixture
def waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a fork waits for all work that there is."""
    monkeypatch.setattr(forks, "MAX_WAIT_S", 60.0)
    for found in forks._all:
        if (uncut := found()) is not None:
            monkeypatch.setattr(uncut, "_max_wait_s", 60.0)


def test_a_fork_waits_for_the_end_of_work(waits_long: None) -> None:
    statuses: list[int] = []
    with work_under_way(Uncut(600.0)) as end:
        forking = threading.Thread(target=lambda: statuses.append(fork()))
        forking.start()
        forking.join(0.2)
        assert forking.is_alive()  # it would have forked long ago
        end.set()
        forking.join()
    assert statuses == [0]


def test_a_fork_waits_for_no_work_that_hangs() -> None:
    with work_under_way(Uncut(0.0)):
        assert fork() == 0


def test_all_work_together_holds_up_a_fork_no_longer_than_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "MAX_WAIT_S", 0.0)
    with work_under_way(Uncut(600.0)), work_under_way(Uncut(600.0)):
        assert fork() == 0


def test_work_goes_on_after_a_fork_in_parent_and_child() -> None:
    uncut = Uncut()

    def work() -> None:
        with uncut.work():
            pass

    assert forked(work) == 0
    work()


def test_a_child_does_what_its_parent_was_doing() -> None:
    uncut = Uncut(0.0)
    with work_under_way(uncut):
        assert forked(uncut.work().__enter__) == 0


def test_work_may_fork(waits_long: None) -> None:
    with Uncut(600.0).work():
        assert fork() == 0


def test_a_child_that_forks_waits_for_no_work_of_its_parent(waits_long: None) -> None:
    uncut = Uncut(0.0)

    def grandchild() -> None:
        uncut._max_wait_s = 600.0
        os._exit(forked(work_once))

    with work_under_way(uncut):
        assert forked(grandchild) == 0


def test_threads_that_fork_at_once_do_not_hold_up_each_other(waits_long: None) -> None:
    """One begins to fork while another is between its handlers and its fork."""
    statuses: list[int] = []
    meeting = threading.Barrier(2)

    def fork_together() -> None:
        meeting.wait()
        statuses.extend(fork() for _ in range(10))

    others = [threading.Thread(target=fork_together) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert statuses == [0] * 20


def test_a_child_imports_what_the_exporter_of_its_parent_was_importing(
    started: Sink, waits_long: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork comes while the module is being imported; it takes as long as a real one."""
    (tmp_path / "slow_to_import.py").write_text(
        "import sys, time\nsys.modules['__main__'].slow_import.set()\ntime.sleep(0.5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    begun = threading.Event()
    monkeypatch.setattr("__main__.slow_import", begun, raising=False)

    def observe(_options: CallbackOptions) -> list[Observation]:
        importlib.import_module("slow_to_import")
        return [Observation(1)]

    flushed: list[bool] = []
    flushing = threading.Thread(target=lambda: flushed.append(otel_rl.flush(timeout_s=60)))
    with own_instruments():
        metrics.get_meter("forks").create_observable_gauge("forks.observed", [observe])
        flushing.start()
        assert begun.wait(60)
        assert forked(lambda: importlib.import_module("slow_to_import")) == 0
        flushing.join()
    assert flushed == [True]
