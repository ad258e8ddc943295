"""One tenant's attack is not another's trouble. The long form is ``make tenants``."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.tenants.attacks import ATTACKS
from tests.tenants.command import BOUNDS, over_bounds
from tests.tenants.stage import Figures, play

SOUND = Figures("an attack", 0, 0.5, 100.0, 1.0, 0, False, 1.0, [])


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", ["gzip_members", "headers_only"])
def test_an_attack_costs_another_tenant_no_request(tmp_path: Path, name: str) -> None:
    (attack,) = (attack for attack in ATTACKS if attack.name == name)
    figures = play(attack, tmp_path, 6.0, timeout_s=60.0)
    assert figures.victim_failed == 0, figures.troubles
    assert figures.memory_mib < BOUNDS["memory_mib"]
    assert figures.exit_status == 0


@pytest.mark.parametrize("name", BOUNDS)
def test_a_figure_over_its_bound_is_named(name: str) -> None:
    assert not over_bounds(SOUND)
    (wrong,) = over_bounds(Figures(**{**asdict(SOUND), name: BOUNDS[name] + 1}))
    assert wrong.startswith(name)


def test_a_bridge_that_does_not_end_well_is_named() -> None:
    assert over_bounds(replace(SOUND, exit_status=None))
