"""The journal in which rows are kept."""

import pytest


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.process, pytest.mark.slow])]
)
def kind_of_journal(request: pytest.FixtureRequest) -> str:
    """Both kinds keep one contract, which the tests of the journal hold them to."""
    return str(request.param)
