"""Leaves some cases of a test to ``make test-all``, by the mark ``slow`` or by their number."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

_FEW = "OTEL_RL_TEST_FEW_EXAMPLES"
_SHARE = 0.25


def draw_few() -> None:
    """Have property tests draw a share of their examples, in processes begun here, too.

    Call it before tests are imported.
    """
    os.environ[_FEW] = "1"
    settings.register_profile("few", max_examples=examples(settings().max_examples))
    settings.load_profile("few")


def examples(n: int) -> int:
    """Return the number of examples that a property test draws: all, or a share of them.

    Args:
        n: Examples with ``make test-all``, and if a file is run by itself.
    """
    return max(10, int(n * _SHARE)) if _FEW in os.environ else n


def slow_after(n: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all cases of a parameter but the first ones.

    Args:
        n: Cases that ``make test`` runs, too.
        cases: Values; a tuple where a test has several parameters in one.

    Returns:
        For ``pytest.mark.parametrize`` and ``pytest.fixture(params=...)``.
    """
    listed = list(cases)
    return [*listed[:n], *(_slow(case) for case in listed[n:])]


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Cases of a parameter in the tests of this file that run, so that no other one is begun."""
    found: dict[Any, None] = {}
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if item.path == request.path and callspec is not None and parameter in callspec.params:
            found[callspec.params[parameter]] = None
    return list(found)


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
