"""What holds for every test that uses the real programs."""

import os
from pathlib import Path

import pytest

from tests.lab.programs import PROGRAMS

# Imported, because these tests start processes, too.
from tests.process.conftest import a_test_that_fails_leaves_no_process

__all__ = ["a_test_that_fails_leaves_no_process"]

_VARIABLE = "OTEL_RL_LAB"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this directory."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.process)


@pytest.fixture(scope="session", autouse=True)
def the_lab_is_built() -> None:
    """Skip what cannot run; with ``OTEL_RL_LAB=required``, fail."""
    missing = [program for program in PROGRAMS if not program.is_built()]
    if missing:
        names = " and ".join(f"{program.name} {program.version}" for program in missing)
        sentence = f"the real {names} are not built: run `make lab` once"
        if os.environ.get(_VARIABLE) == "required":
            pytest.fail(f"{sentence} ({_VARIABLE}=required).", pytrace=False)
        pytest.skip(f"{sentence}, it takes some minutes.")
