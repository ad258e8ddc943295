"""Every alert is about metrics that are there, has cases of its own, and says what it costs."""

import re

import yaml

from tests.deploy.alerts import (
    ALERTS,
    CASES,
    alerts,
    metrics_of_bridges,
    metrics_of_collectors,
    named,
)

FROM_ELSEWHERE = {
    "up",
    "kubelet_volume_stats_available_bytes",
    "kubelet_volume_stats_capacity_bytes",
    "node_filesystem_avail_bytes",
    "node_filesystem_size_bytes",
}


def test_every_metric_of_the_bridge_is_one_that_it_has() -> None:
    # tests/lab asks the real Collector for its own.
    assert named() - metrics_of_bridges() - metrics_of_collectors() == FROM_ELSEWHERE


def test_every_alert_has_a_case_in_which_it_comes_and_one_in_which_it_does_not() -> None:
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for group in yaml.safe_load(CASES.read_text())["tests"]
        for case in group["alert_rule_test"]
    ]
    assert set(cases) == {(name, comes) for name in alerts() for comes in (True, False)}


def test_every_alert_says_how_bad_it_is_and_whether_anything_is_lost() -> None:
    for name, alert in alerts().items():
        labels = alert["labels"]
        assert labels["severity"] in {"critical", "warning", "info"}, name
        assert labels["effect"] in {"lost", "waits", "none"}, name
        assert alert["annotations"]["summary"].endswith("."), name


def test_the_runbook_has_an_entry_for_every_alert() -> None:
    page = (ALERTS.parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")
    entries = re.findall(r"^#### (OtelRL\w+)\n\n(\S)", page, re.MULTILINE)
    assert [name for name, _ in entries] == [*alerts()][: len(entries)]
    assert len(entries) == len(alerts())
