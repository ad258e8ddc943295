"""Bounds of the audit log: who writes or reads chooses what is in its lines."""

import json

import pytest

from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.signals import Signal

NAMED = 64


def test_a_reader_cannot_make_a_line_long_or_many_of_one(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(is_on=True)
    for end in "ab":
        audit.read(None, "10.0.0.9", route="r" * 16_000 + end, run="i" * 16_000 + end, status=404)
    (told,) = (json.loads(message) for message in caplog.messages)
    assert (told["route"], told["run_id"]) == ("r" * NAMED, "i" * NAMED)


def test_a_sender_cannot_make_a_line_long_and_each_of_its_runs_has_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [ExperimentKey("e" * 500 + end) for end in "ab"]
    audit = Audit(is_on=True)
    for _ in range(2):
        audit.wrote(None, "10.0.0.9", signal=Signal.METRICS, runs=runs, shares=TokenShares(()))
    told = [json.loads(message) for message in caplog.messages]
    assert [one["run"] for one in told] == ["e" * NAMED] * 2
    assert [one["run_id"] for one in told] == [run_id(one.experiment, one.trial) for one in runs]
