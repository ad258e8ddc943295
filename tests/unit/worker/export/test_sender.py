"""An answer of the endpoint decides on the request, on what counts as lost, and on the next try."""

import time
from collections import deque
from collections.abc import Iterable

import pytest

from otel_rl.signals import Signal
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.export.queues import SendQueues
from otel_rl.worker.export.sender import Sender
from otel_rl.worker.export.transport import Outcome, Reply
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.request_packer import Request

ACCEPTED, RETRY = Reply(Outcome.ACCEPTED), Reply(Outcome.RETRY, "busy")
UNREACHABLE = Reply(Outcome.RETRY, "no connection", unreachable=True)


class Scripted:
    """A transport whose answers, or defects, are given."""

    def __init__(self, answers: Iterable[Reply | Exception]) -> None:
        self.answers = deque(answers)
        self.sent: list[bytes] = []

    def prepare(self, payload: bytes) -> bytes:
        return payload

    def send(self, body: bytes) -> Reply:
        self.sent.append(body)
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        return


class Rig:
    """A sender with one request of three measurements and one of an event."""

    def __init__(self, *answers: Reply | Exception) -> None:
        self.transport = Scripted(answers)
        self.drops = Drops()
        self.queues = SendQueues(lambda _signal, _other: self.transport)
        self.sender = Sender(self.queues, Guard(self.drops), is_reached=False)
        self.sender.put(Request(b"measured", 3))
        self.sender.put(Request(b"event", 1, Signal.LOGS))


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (ACCEPTED, {}),
        (Reply(Outcome.ACCEPTED, "slower, please"), {}),
        (Reply(Outcome.ACCEPTED, "two late", rejected=2), {DropReason.REJECTED: 2}),
        (Reply(Outcome.REFUSED, "unknown token"), {DropReason.REJECTED: 3}),
    ],
)
def test_a_final_answer_takes_the_request_and_counts_what_is_lost(
    answer: Reply, lost: dict[DropReason, int]
) -> None:
    rig = Rig(answer)
    assert rig.sender.send_oldest(rig.queues.main)
    assert not rig.queues.main.requests
    assert rig.drops.counts() == lost
    assert rig.sender.is_reached


@pytest.mark.parametrize("answer", [RETRY, UNREACHABLE, RuntimeError("defect")])
def test_without_an_answer_the_same_request_is_sent_again_later(answer: Reply | Exception) -> None:
    rig = Rig(answer, ACCEPTED)
    began_s = time.monotonic()
    assert not rig.sender.send_oldest(rig.queues.main)
    assert rig.queues.main.not_before_s > began_s
    assert rig.sender.is_reached == (answer is RETRY)
    assert rig.sender.send_oldest(rig.queues.main)
    assert rig.transport.sent == [b"measured", b"measured"]
    assert (rig.queues.main.failures, rig.queues.main.not_before_s) == (0, 0.0)
    assert not rig.drops.counts().get(DropReason.REJECTED)


def test_the_pause_doubles_and_never_is_shorter_than_the_endpoint_asks() -> None:
    rig = Rig(*[RETRY] * 8, Reply(Outcome.RETRY, "wait", retry_after_s=1e6))
    pauses = []
    for _ in range(9):
        now_s = time.monotonic()
        rig.sender.send_oldest(rig.queues.main)
        pauses.append(rig.queues.main.not_before_s - now_s)
    *own, asked = pauses
    for number, pause_s in enumerate(own):
        assert pause_s >= min(0.5 * 2**number, 30.0) / 2
    assert asked >= 1e6


def test_a_refused_event_costs_no_measurement() -> None:
    rig = Rig(Reply(Outcome.REFUSED, "no logs here"), ACCEPTED)
    assert rig.sender.send_oldest(rig.queues.events)
    assert rig.queues.events.is_refused
    assert rig.drops.counts() == {DropReason.REJECTED: 1}
    assert rig.sender.send_oldest(rig.queues.main)
    assert rig.drops.counts() == {DropReason.REJECTED: 1}


@pytest.mark.parametrize("answer", [ACCEPTED, RETRY, Reply(Outcome.REFUSED, "unknown token")])
def test_a_request_that_is_sent_alone_is_never_queued(answer: Reply) -> None:
    rig = Rig(answer)
    rig.sender.send_alone(Request(b"beat", 0))
    assert [item.body for item in rig.queues.main.requests] == [b"measured"]
    assert rig.drops.counts() == {}
    assert (rig.queues.main.failures > 0) == (answer is RETRY)


def test_the_last_failure_is_known() -> None:
    rig = Rig(RETRY)
    assert rig.sender.last_failure == "no answer yet"
    rig.sender.send_oldest(rig.queues.main)
    assert rig.sender.last_failure == "busy"
