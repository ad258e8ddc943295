"""Reads deploy/grafana."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.deploy.alerts import metrics_in

GRAFANA: Final = Path(__file__).parents[2] / "deploy" / "grafana"

_VARIABLES: Final = {"$__rate_interval": "5m", "$instance": ".*", "$experiment": ".+"}


def dashboards() -> Mapping[str, Mapping[str, Any]]:
    """Every dashboard, by the name of its file."""
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((GRAFANA / "dashboards").glob("*.json"))
    }


def panels(dashboard: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Its charts, without the titles of rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: Mapping[str, Any]) -> Iterator[str]:
    """Yield every query of Prometheus, with values for Grafana's variables."""
    found = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    found += [one["expr"] for one in dashboard["annotations"]["list"]]
    for query in found:
        text = query
        for variable, value in _VARIABLES.items():
            text = text.replace(variable, value)
        yield text


def metrics_of(dashboard: Mapping[str, Any]) -> frozenset[str]:
    """Every metric in its queries, but ``ALERTS``, which Prometheus has while one is pending."""
    found = {name for query in queries(dashboard) for name in metrics_in(query)}
    found |= {
        variable["definition"].removeprefix("label_values(").partition(",")[0]
        for variable in dashboard["templating"]["list"]
    }
    return frozenset(found - {"ALERTS"})
