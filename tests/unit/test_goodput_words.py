"""Goodput as a line and as JSON."""

import pytest

from otel_rl.goodput import Spent, as_json, in_words


def test_a_line_has_the_share_and_all_parts_in_units_of_their_size() -> None:
    run = Spent(150.0 * 3600, 100.0 * 60, 45.5, 0.0)
    assert in_words({"": run}) == (
        "goodput 99%: productive 150 h, overhead 100 min, idle 45.5 s, wasted 0 s of worker time"
    )


def test_a_line_names_the_roles_that_it_is_of() -> None:
    of_roles = {"generator": Spent(1, 1, 0, 0), "trainer": Spent(3, 0, 0, 1)}
    spent = {"": Spent(4, 1, 0, 1), **of_roles}
    assert in_words(spent).endswith("of worker time (generator 50%, trainer 75%)")


@pytest.mark.parametrize("spent", [{}, {"": Spent(0, 0, 0, 0)}])
def test_what_is_unknown_has_no_line(spent: dict[str, Spent]) -> None:
    assert in_words(spent) == ""


def test_json_has_seconds_by_role_and_part() -> None:
    assert as_json({"": Spent(1.23456, 0, 0, 2)}) == {
        "": {"productive_s": 1.235, "overhead_s": 0, "idle_s": 0, "wasted_s": 2}
    }
