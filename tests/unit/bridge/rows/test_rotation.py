"""Whose turn it is."""

from itertools import islice

from otel_rl.bridge.rows.scheduler import Rotation
from otel_rl.records import ExperimentKey


def keys(tenant: str, n: int) -> list[ExperimentKey]:
    return [ExperimentKey(f"{tenant}/{number}") for number in range(n)]


def owner_of(key: ExperimentKey) -> str:
    return key.experiment.partition("/")[0]


def test_every_tenant_has_a_turn_before_one_has_its_second() -> None:
    rotation = Rotation(owner_of)
    order = [*rotation.turns([*keys("many", 5), *keys("few", 2)])]
    assert [owner_of(key) for key in order] == ["many", "few"] * 2 + ["many"] * 3


def test_what_had_no_turn_comes_first_the_next_time_and_new_runs_come_last() -> None:
    rotation = Rotation(owner_of)
    many = keys("many", 6)
    assert [*islice(rotation.turns(many[:4]), 2)] == many[:2]
    assert not rotation.is_complete
    assert [*rotation.turns(many)] == [*many[2:4], *many[:2], *many[4:]]
    assert rotation.is_complete


def test_a_tenant_that_had_no_turn_comes_first_the_next_time() -> None:
    rotation = Rotation(owner_of)
    of_all = [*keys("a", 3), *keys("b", 3)]
    assert owner_of(next(rotation.turns(of_all))) == "a"
    assert owner_of(next(rotation.turns(of_all))) == "b"


def test_all_have_had_a_turn_also_if_some_go_before_theirs() -> None:
    rotation = Rotation(owner_of)
    many = keys("many", 3)
    next(rotation.turns(many))
    assert [*rotation.turns([many[0]])] == [many[0]]
    assert rotation.is_complete
