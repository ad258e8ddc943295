"""One tenant's attack is not another's trouble. The long form is ``make tenants``."""

from pathlib import Path

import pytest

from tests.tenants.attacks import ATTACKS
from tests.tenants.command import BOUNDS
from tests.tenants.stage import play


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", ["gzip_members", "headers_only"])
def test_an_attack_costs_another_tenant_no_request(tmp_path: Path, name: str) -> None:
    (attack,) = (attack for attack in ATTACKS if attack.name == name)
    figures = play(attack, tmp_path, 6.0, timeout_s=60.0)
    assert figures.victim_failed == 0, figures.troubles
    assert figures.memory_mib < BOUNDS["memory_mib"]
    assert figures.exit_status == 0
