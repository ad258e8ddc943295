"""What an alert and the image say is in docs/operations.md and other pages."""

import re
from pathlib import Path

import pytest

from otel_rl.bridge.config import ListenSettings
from otel_rl.setting_types import Address
from tests.deploy.alerts import alerts
from tests.support.docs_examples import anchors

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """From a heading to the next one of its level or above."""
    found = re.search(rf"^(#+) {heading}\n(.*?)(?=^#{{1,2}} |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[2]


@pytest.mark.parametrize("name", sorted(alerts()))
def test_every_alert_says_what_to_do_and_leads_to_a_section_that_is_there(name: str) -> None:
    action = alerts()[name]["annotations"]["action"]
    assert action
    for document, anchor in re.findall(r"docs/(\w+)\.md#([\w-]+)", action):
        assert anchor in anchors(ROOT / "docs" / f"{document}.md")


@pytest.mark.parametrize("address", [ListenSettings().http, ListenSettings().grpc], ids=str)
def test_the_ports_of_a_bridge_are_documented(address: Address) -> None:
    told = section(page("operations"), "Ports and volumes")
    assert str(address) in told
    deployed = address.port + 20
    assert f" {deployed} |" in told
    assert f":{deployed}" in (ROOT / "Dockerfile").read_text()
