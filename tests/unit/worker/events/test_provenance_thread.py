"""Provenance is reported once, and never after the process began to end."""

import pytest
from opentelemetry.sdk.resources import Resource

from otel_rl.worker.drops import Drops
from otel_rl.worker.events import provenance
from otel_rl.worker.events.provenance_thread import ProvenanceThread
from otel_rl.worker.events.queue import EventQueue
from otel_rl.worker.guard import Guard
from tests.waiting import wait_until


class Rig:
    """A thread over a real queue, and the calls that it makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[bool] = []
        monkeypatch.setattr(provenance, "provenance", self._provenance)
        guard = Guard(Drops())
        self.events = EventQueue(Resource({}), guard)
        self.thread = ProvenanceThread(self.events, guard)

    def _provenance(self, *, with_code: bool) -> dict[str, str]:
        self.calls.append(with_code)
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
