"""The exam of observations can fail, and its runs depend on nothing but the seed."""

import pytest

from exams.absolute.case import Truth, examined, is_named
from otel_rl.diagnose.result import Diagnosis, Observation, Observed, Verdict
from tests.support.slow import slow_after

SEED = 2

SYNC = Truth("slow sync", frozenset({"sync_share"}), "trainer", "weight_sync")


def said(kind: Observed, role: str, phase: str) -> Diagnosis:
    one = Observation(kind, "", "", "", True, role, None, phase, 0.5, 1.0, 2.0, kind)
    return Diagnosis(0, 40, Verdict.BEYOND, [], [], None, observations=[one])


def test_a_place_is_right_only_with_its_kind_its_role_and_its_phase() -> None:
    assert is_named(SYNC, said(Observed.SYNC, "trainer", "weight_sync"))
    assert not is_named(SYNC, said(Observed.DATA, "trainer", "weight_sync"))
    assert not is_named(SYNC, said(Observed.SYNC, "generator", "weight_sync"))
    assert not is_named(SYNC, said(Observed.SYNC, "trainer", "push"))
    assert not is_named(SYNC, Diagnosis(0, 40, Verdict.HEALTHY, [], [], None))


@pytest.mark.parametrize("number", slow_after(1, [3, -4]), ids=["slow", "healthy"])
def test_a_case_is_right_and_the_same_again(number: int) -> None:
    mark = examined(number, SEED)
    assert mark.is_right, mark
    assert mark.is_beyond is (number > 0)
    assert examined(number, SEED) == mark
