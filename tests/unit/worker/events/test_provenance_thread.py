"""Provenance is reported once, and never after the process began to end."""

import logging
import threading

import pytest
from opentelemetry.sdk.resources import Resource

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.events import provenance
from otel_rl.worker.events.provenance import ProvenanceThread
from otel_rl.worker.events.queue import EventQueue
from otel_rl.worker.guard import Guard
from tests.waiting import wait_until


class Rig:
    """A thread over a real queue, and the calls that it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[bool] = []
        self.may_end = threading.Event()
        self.may_end.set()
        monkeypatch.setattr(provenance, "provenance", self._provenance)
        monkeypatch.setattr(provenance, "_EXIT_S", 90.0)  # a busy machine
        self.guard = Guard(Drops())
        self.events = EventQueue(Resource({}), self.guard)
        self.thread = ProvenanceThread(self.events, self.guard)

    def _provenance(self, *, with_code: bool) -> dict[str, str]:
        self.calls.append(with_code)
        self.may_end.wait(90.0)
        return {"process.command": "train.py"}


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_it_is_reported_once(rig: Rig) -> None:
    rig.thread.start(with_code=True)
    rig.thread.start(with_code=False)
    rig.thread.stop()
    assert (rig.calls, len(rig.events.take_all())) == ([True], 1)


def test_an_ending_process_begins_nothing(rig: Rig) -> None:
    rig.thread.stop()
    rig.thread.start(with_code=True)
    assert rig.calls == []


def test_a_forked_child_reports_its_own(rig: Rig) -> None:
    rig.thread.start(with_code=True)
    rig.thread.forget()
    rig.thread.start(with_code=False)
    wait_until(lambda: sorted(rig.calls) == [False, True], "two reports", timeout_s=90.0)
    rig.thread.stop()


def test_what_is_found_too_late_is_no_record_that_an_ended_export_lacks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(provenance, "_EXIT_S", 0.01)
    rig.may_end.clear()
    rig.thread.start(with_code=True)
    with caplog.at_level(logging.WARNING, logger="otel_rl"):
        rig.thread.stop()
    rig.may_end.set()
    wait_until(
        lambda: all(one.name != "otel-rl-provenance" for one in threading.enumerate()),
        "the end of the thread",
        timeout_s=90.0,
    )
    assert rig.events.abandon() == 0
    assert rig.guard.drops.counts() == {DropReason.SHUTDOWN: 1}
    assert "commit" in caplog.text
