from typing import Any

import pytest

from otel_rl.cli.ending.report import troubles
from otel_rl.records import RoleStanding, WorkerFailure

ROLES = {
    "trainer": RoleStanding(expected=2, alive=2, failures=0, recovery_s=None),
    "generator": RoleStanding(expected=3, alive=2, failures=2, recovery_s=8.71),
    "reward": RoleStanding(expected=0, alive=0, failures=0, recovery_s=None),
}


def test_who_ended_without_a_goodbye_is_said_with_what_may_be_missing() -> None:
    roles = {"trainer": RoleStanding(0, 0, 0, None, silent=2)}
    said = (
        "trainer: 2 ended without an exit report, or outlived the command; up to an export "
        "interval (1 s unless set) of metrics, or what followed the command, is missing"
    )
    assert [*troubles(roles)] == [said]


def killed(worker: str, **about: Any) -> WorkerFailure:
    return WorkerFailure(f"generator/{worker}", 1, **about)


LOST = (
    "up to an export interval (1 s unless set) of metrics is missing, of 2 without an exit report"
)


@pytest.mark.parametrize("error", [None, "SIGTERM"])
def test_what_may_be_missing_of_killed_workers_is_said(error: str | None) -> None:
    roles = {"generator": RoleStanding(expected=2, alive=0, failures=2, recovery_s=None)}
    assert [*troubles(roles, [killed("0", error=error), killed("1", error=error)])] == [
        f"generator: {LOST}"
    ]


def test_of_a_worker_that_reported_its_failure_nothing_is_missing() -> None:
    roles = {"generator": RoleStanding(expected=1, alive=0, failures=1, recovery_s=None)}
    assert [*troubles(roles, [killed("0", error="ValueError")])] == []


def test_a_replaced_worker_is_not_missing_but_its_last_metrics_may_be() -> None:
    roles = {"generator": RoleStanding(expected=3, alive=2, failures=2, recovery_s=1.0)}
    replaced = [killed("0", recovery_s=1.0), killed("1", recovery_s=1.0)]
    assert [*troubles(roles, replaced)] == [f"generator: 1 missing, {LOST}"]


def test_only_what_is_not_as_it_should_be_is_a_trouble() -> None:
    assert [*troubles(ROLES)] == ["generator: 1 missing, 2 failed, replaced after 8.7 s"]
